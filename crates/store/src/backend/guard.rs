//! Chunks that the next manifests of a handle need, for backends whose contents other processes change meanwhile.
//!
//! The rule is that of the `file` backend:
//!
//! - Every chunk that is put, whether it is stored or found there, is needed by the next manifest of the handle,
//!   whichever thread puts it. It is also needed by the next manifest of the thread that put the chunk: threads that
//!   share a handle save at the same time, and one may publish before another is ready to.
//! - A manifest is published only if all chunks that it needs exist at that moment. Only then are they forgotten. So a
//!   manifest that fails for any reason leaves the needs of the next attempt, and of other threads' manifests,
//!   unchanged.
//! - A missing chunk fails the manifest that needs it, which tells the caller. Later manifests do not need the chunk
//!   any more, because otherwise an abandoned save would fail all that follow. Until the chunk is put again, it still
//!   fails manifests whose bytes name it, and that of a thread that put it and has not been told.

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

#[derive(Debug, Default)]
pub(super) struct Guard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Chunks that any thread put since the last manifest.
    since_manifest: HashMap<ChunkHash, Put>,
    /// Chunks that each thread put since its own last manifest.
    by_thread: ByThread<HashMap<ChunkHash, Put>>,
    /// Chunks that were missing when a manifest needed them, and were not put again.
    lost: HashSet<ChunkHash>,
}

#[derive(Clone, Copy, Debug)]
struct Put {
    number: u64,
    at: Moment,
}

/// A moment on two clocks: the steady one may stand still while the machine sleeps, and the wall clock may be set.
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

    /// Returns the larger of both ages. A chunk that wrongly seems old only costs another look-up.
    #[cfg(feature = "s3")]
    fn age(&self) -> Duration {
        let wall = self.wall.elapsed().unwrap_or_default();
        self.steady.elapsed().max(wall)
    }
}

/// The maximum number of remembered lost chunks, in addition to those of the last failed manifest.
const MOST_LOST: usize = 65_536;

/// The chunks that a manifest needs, in ascending order.
#[derive(Debug)]
pub(super) struct Needed {
    pub(super) chunks: Vec<ChunkHash>,
    #[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "a redis script asks for all"))]
    at: Vec<Moment>,
    /// Puts with greater numbers happened after this snapshot.
    last: u64,
}

impl Guard {
    /// Records a put. Called once the chunk is stored or on its way, before the put returns.
    pub(super) fn put(&self, hash: &ChunkHash) {
        let mut state = self.state();
        state.last += 1;
        let put = Put { number: state.last, at: Moment::now() };
        state.lost.remove(hash);
        state.since_manifest.insert(*hash, put);
        state.by_thread.mine_mut().insert(*hash, put);
    }

    /// # Errors
    /// [`StoreError::Collected`] if a manifest names a chunk that is lost.
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
        let own = state.by_thread.mine().into_iter().flatten();
        // A chunk may be in both maps. The shared one has the later put, so it comes second and wins.
        let all: HashMap<ChunkHash, Put> = own.chain(&state.since_manifest).map(|(h, p)| (*h, *p)).collect();
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable_by_key(|(hash, _)| *hash);
        Ok(Needed {
            chunks: all.iter().map(|(hash, _)| *hash).collect(),
            at: all.iter().map(|(_, put)| put.at).collect(),
            last: state.last,
        })
    }

    pub(super) fn published(&self, needed: &Needed) {
        let mut state = self.state();
        for hash in &needed.chunks {
            if let Entry::Occupied(put) = state.since_manifest.entry(*hash)
                && put.get().number <= needed.last
            {
                put.remove();
            }
        }
        state.by_thread.forget_mine();
        state.by_thread.tidy(HashMap::len);
    }

    pub(super) fn gone(&self, needed: &Needed, gone: &[ChunkHash]) -> Option<StoreError> {
        let first = *gone.first()?;
        let mut state = self.state();
        if state.lost.len().saturating_add(gone.len()) > MOST_LOST {
            state.lost.clear();
        }
        for hash in gone {
            state.by_thread.mine_mut().remove(hash);
            match state.since_manifest.entry(*hash) {
                // It was put again after the look-up.
                Entry::Occupied(put) if put.get().number > needed.last => continue,
                Entry::Occupied(put) => drop(put.remove()),
                Entry::Vacant(_) => {}
            }
            state.lost.insert(*hash);
        }
        Some(StoreError::Collected { hash: first })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "s3")]
impl Needed {
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
        // It fails manifests that name it, and one manifest of the thread that put it; no others.
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
