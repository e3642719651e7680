//! The permission to access an engine's blocks while they belong to the request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ArchiveError;

/// The permission to read or write an engine's blocks. It can be revoked while a store or a GPU is waited for. The
/// blocks can be used again once the permit is [quiet](Self::is_quiet), however long the store takes.
///
/// Clones share the permission.
#[derive(Clone, Debug, Default)]
pub struct Permit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_revoked: bool,
    copies: usize,
}

impl Permit {
    /// Returns a valid permission.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the permission, so that no copy starts any more. It does not wait for copies in progress;
    /// [`is_quiet`](Self::is_quiet) reports their end. A copy on a GPU ends when the GPU gets to it, if ever.
    pub fn revoke(&self) {
        self.state().is_revoked = true;
    }

    /// Tells whether the permission is revoked and its last copy has ended, so that nothing accesses the blocks any
    /// more. Each thread copies at most one token chunk of one group at a time.
    pub fn is_quiet(&self) -> bool {
        let state = self.state();
        state.is_revoked && state.copies == 0
    }

    pub(crate) fn during<T>(&self, copy: impl FnOnce() -> Result<T, ArchiveError>) -> Result<T, ArchiveError> {
        let _under_way = UnderWay::begin(self)?;
        copy()
    }

    /// Locks the state, also after a panic. Each lock guards a single change, so the state is never half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy that the permit counts until it is dropped, even if it panics.
struct UnderWay<'a>(&'a Permit);

impl<'a> UnderWay<'a> {
    fn begin(permit: &'a Permit) -> Result<Self, ArchiveError> {
        let mut state = permit.state();
        if state.is_revoked {
            return Err(ArchiveError::Revoked);
        }
        state.copies += 1;
        drop(state);
        Ok(Self(permit))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state().copies -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_permission_is_quiet_once_it_is_revoked_and_its_copies_are_over() {
        let permit = Permit::new();
        assert!(!permit.is_quiet(), "a copy may begin");
        let within = permit.during(|| {
            permit.during(|| Ok(()))?;
            permit.revoke();
            assert!(!permit.is_quiet(), "one is under way");
            let another = permit.during(|| Ok(()));
            assert!(matches!(another, Err(ArchiveError::Revoked)));
            Ok(())
        });
        within.unwrap();
        assert!(permit.is_quiet() && permit.clone().is_quiet());
    }

    #[test]
    fn a_copy_that_panics_is_over() {
        let permit = Permit::new();
        let copy = || permit.during::<()>(|| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(copy)).is_err());
        permit.revoke();
        assert!(permit.is_quiet());
    }
}
