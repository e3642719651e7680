//! Which chunks the manifests of a handle rely on, for backends that others change meanwhile.
//!
//! The rule, which is that of the `file` backend:
//!
//! - A chunk that is put, stored anew or found there, is needed by the next manifest of the handle, whichever
//!   thread puts that, and by the next manifest of the thread that put the chunk: threads that share a handle
//!   save at the same time, and the manifest of one may go before the other has come to its own.
//! - A manifest is published only if all that it needs is there at that moment. Only then is anything
//!   forgotten, so a manifest that fails for any reason takes nothing from the next attempt, nor from the
//!   manifests of other threads.
//! - What turns out to be gone fails that manifest, and its caller has been told: later manifests do not need
//!   it, or a save that was given up would fail all that follow. It fails them if it stands in their bytes, or
//!   if the thread that publishes put it itself and has not been told; until it is put again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(feature = "s3")]
use std::time::Duration;
use std::time::{Instant, SystemTime};

use super::by_thread::ByThread;
use super::references::References;
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Guard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Numbers the puts.
    last: u64,
    /// Put since the last manifest, by whichever thread.
    common: HashMap<ChunkHash, Put>,
    /// Put by a thread since its own last manifest.
    own: ByThread<HashMap<ChunkHash, Put>>,
    /// Gone when a manifest needed them, and not put again.
    lost: HashSet<ChunkHash>,
}

/// The last put of a chunk.
#[derive(Clone, Copy, Debug)]
struct Put {
    number: u64,
    at: Moment,
}

/// By both clocks: one stands still while the machine sleeps, the other may be set.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "a redis script asks for all"))]
struct Moment {
    steady: Instant,
    wall: SystemTime,
}

impl Moment {
    fn now() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// The larger one: what seems old is only looked at once more.
    #[cfg(feature = "s3")]
    fn age(&self) -> Duration {
        let wall = self.wall.elapsed().unwrap_or_default();
        self.steady.elapsed().max(wall)
    }
}

/// How many lost chunks are remembered beside those of the last manifest that failed.
const MOST_LOST: usize = 65_536;

/// What a manifest needs, ascending.
#[derive(Debug)]
pub(super) struct Needed {
    pub(super) chunks: Vec<ChunkHash>,
    /// When each was last put.
    #[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "a redis script asks for all"))]
    at: Vec<Moment>,
    /// Puts with greater numbers came later.
    last: u64,
}

impl Guard {
    /// A chunk was put. Called when it is there or on its way, before the caller is told.
    pub(super) fn put(&self, hash: &ChunkHash) {
        let mut state = self.state();
        state.last += 1;
        let put = Put { number: state.last, at: Moment::now() };
        state.lost.remove(hash);
        state.common.insert(*hash, put);
        state.own.mine_mut().insert(*hash, put);
    }

    /// What manifests with these bytes need.
    ///
    /// # Errors
    /// [`StoreError::Collected`] if one of them names a chunk that is lost.
    pub(super) fn needed<'a>(&self, manifests: impl IntoIterator<Item = &'a [u8]>) -> Result<Needed, StoreError> {
        let state = self.state();
        if !state.lost.is_empty() {
            let lost = References::new(state.lost.iter().copied());
            let mut named = None;
            for manifest in manifests {
                lost.find(manifest, &mut |hash| named = Some(*hash));
            }
            if let Some(hash) = named {
                return Err(StoreError::Collected { hash });
            }
        }
        let own = state.own.mine().into_iter().flatten();
        // Of the two times of a chunk the later one is the common one's.
        let all: HashMap<ChunkHash, Put> = own.chain(&state.common).map(|(h, p)| (*h, *p)).collect();
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable_by_key(|(hash, _)| *hash);
        Ok(Needed {
            chunks: all.iter().map(|(hash, _)| *hash).collect(),
            at: all.iter().map(|(_, put)| put.at).collect(),
            last: state.last,
        })
    }

    /// A manifest that needed these was published by this thread.
    pub(super) fn published(&self, needed: &Needed) {
        let mut state = self.state();
        for hash in &needed.chunks {
            if let Entry::Occupied(put) = state.common.entry(*hash)
                && put.get().number <= needed.last
            {
                put.remove();
            }
        }
        state.own.forget_mine();
        state.own.tidy(HashMap::len);
    }

    /// Some of what a manifest of this thread needed are gone; the error for its caller.
    pub(super) fn gone(&self, needed: &Needed, gone: &[ChunkHash]) -> Option<StoreError> {
        let first = *gone.first()?;
        let mut state = self.state();
        if state.lost.len().saturating_add(gone.len()) > MOST_LOST {
            state.lost.clear();
        }
        for hash in gone {
            state.own.mine_mut().remove(hash);
            match state.common.entry(*hash) {
                // Put again since we looked.
                Entry::Occupied(put) if put.get().number > needed.last => continue,
                Entry::Occupied(put) => drop(put.remove()),
                Entry::Vacant(_) => {}
            }
            state.lost.insert(*hash);
        }
        Some(StoreError::Collected { hash: first })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "s3")]
impl Needed {
    /// Those that were last put so long ago or longer.
    pub(super) fn older(&self, age: Duration) -> Vec<ChunkHash> {
        let all = self.chunks.iter().zip(&self.at);
        all.filter(|(_, at)| at.age() >= age).map(|(hash, _)| *hash).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn hash(n: u8) -> ChunkHash {
        blake3::hash(&[n]).into()
    }

    fn needed(guard: &Guard, manifest: &[u8]) -> Needed {
        guard.needed([manifest]).unwrap()
    }

    /// In a thread of its own, and in order with everything else.
    fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn nothing_is_forgotten_before_a_manifest_is_published() {
        let guard = Guard::default();
        guard.put(&hash(1));
        guard.put(&hash(2));
        let first = needed(&guard, b"");
        assert_eq!(first.chunks.len(), 2);
        // It failed, and was tried again; something was put meanwhile, and something once more.
        guard.put(&hash(3));
        guard.put(&hash(1));
        guard.published(&first);
        let mut left = [hash(1), hash(3)];
        left.sort();
        // This thread's own are forgotten; what is common was put after the manifest began.
        assert_eq!(needed(&guard, b"").chunks, left);
        guard.published(&needed(&guard, b""));
        assert!(needed(&guard, b"").chunks.is_empty());
    }

    #[test]
    fn a_thread_needs_what_it_put_whoever_published_before() {
        let guard = Guard::default();
        guard.put(&hash(1));
        elsewhere(|| guard.published(&needed(&guard, b"")));
        assert_eq!(needed(&guard, b"").chunks, [hash(1)]);
        assert!(elsewhere(|| needed(&guard, b"").chunks.is_empty()));
    }

    #[test]
    fn what_is_lost_fails_who_may_need_it_until_it_is_put_again() {
        let guard = Guard::default();
        guard.put(&hash(1));
        guard.put(&hash(2));
        let error = elsewhere(|| guard.gone(&needed(&guard, b""), &[hash(1)])).unwrap();
        assert!(matches!(error, StoreError::Collected { hash: lost } if lost == hash(1)));
        let fails = |manifest: &[u8]| guard.needed([&b"other"[..], manifest]).is_err();
        // Whoever names it; the thread that put it, once; and nobody else.
        assert!(fails(hash(1).as_bytes()));
        assert!(fails(hash(1).to_string().as_bytes()));
        assert!(!fails(hash(2).as_bytes()));
        assert_eq!(elsewhere(|| needed(&guard, b"").chunks), [hash(2)], "told already");
        let own = needed(&guard, b"");
        assert_eq!(own.chunks.len(), 2);
        guard.gone(&own, &[hash(1)]).unwrap();
        assert_eq!(needed(&guard, b"").chunks, [hash(2)]);
        guard.put(&hash(1));
        assert!(!fails(hash(1).as_bytes()));
        assert_eq!(needed(&guard, b"").chunks.len(), 2);
    }

    #[test]
    fn what_is_put_again_while_a_manifest_fails_is_not_lost() {
        let guard = Guard::default();
        guard.put(&hash(1));
        let began = needed(&guard, b"");
        guard.put(&hash(1));
        guard.gone(&began, &[hash(1)]).unwrap();
        assert_eq!(needed(&guard, hash(1).as_bytes()).chunks, [hash(1)]);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_put_is_as_old_as_the_older_clock_says() {
        let hour = Duration::from_secs(3600);
        let mut put = Moment::now();
        assert!(put.age() < hour);
        // The machine slept.
        put.wall -= hour;
        assert!(put.age() >= hour);
        // The clock was set back.
        put = Moment::now();
        put.wall += hour;
        assert!(put.age() < hour);
    }

    #[test]
    fn what_is_remembered_of_the_lost_is_bounded() {
        let guard = Guard::default();
        let many = |from: u64, count: usize| -> Vec<ChunkHash> {
            let numbers = (from..).take(count);
            numbers.map(|n| blake3::hash(&n.to_le_bytes()).into()).collect()
        };
        let (old, new) = (many(0, MOST_LOST - 1), many(1 << 32, 2));
        for lost in [&old, &new] {
            guard.gone(&needed(&guard, b""), lost).unwrap();
        }
        assert!(guard.needed([old[0].as_bytes()]).is_ok());
        assert!(guard.needed([new[0].as_bytes()]).is_err());
    }
}
