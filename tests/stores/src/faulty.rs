//! A backend that fails on request.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use transload_store::backend::{Backend, MemoryStore, Put, Revision};
use transload_store::{ChunkHash, ManifestName, StoreError};

use crate::forward;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    PutChunk,
    GetChunk,
    PutManifest,
    GetManifest,
    DeleteManifest,
    PrefetchChunks,
}

/// The way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call fails without an effect.
    FailBefore,
    /// The call has its effect and fails all the same, as if the answer were lost.
    FailAfter,
    /// This bit of the bytes that are read (modulo their length) is flipped. Calls that read nothing are not changed.
    FlipBit(u64),
}

/// The calls that fail. Calls are counted by kind, from 1; each value of a batch is a call.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    planned: Vec<(Call, u64, Effect)>,
    from: Vec<(Call, u64, Effect)>,
    /// Seed and threshold.
    random: Option<(u64, u64)>,
    takes: Duration,
}

impl Plan {
    /// Makes a plan without failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the `nth` call of this kind, from 1, fail.
    pub fn with(mut self, call: Call, nth: u64, effect: Effect) -> Self {
        self.planned.push((call, nth, effect));
        self
    }

    /// Makes the `nth` call of this kind and all later ones fail.
    pub fn with_all_from(mut self, call: Call, nth: u64, effect: Effect) -> Self {
        self.from.push((call, nth, effect));
        self
    }

    /// Makes every call take this long.
    pub fn with_time(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }

    /// Makes this share of all other calls, from 0 to 1, fail before or after its effect. The same seed and the same
    /// order of calls give the same failures.
    pub fn with_random(mut self, seed: u64, part: f64) -> Self {
        // A cast of a float ends at the bounds.
        self.random = Some((seed, (part * u64::MAX as f64) as u64));
        self
    }
}

/// A backend whose calls fail with [`StoreError::Io`], as a [`Plan`] says.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    counts: [u64; 6],
    failed: u64,
}

impl<B> Faulty<B> {
    /// Wraps `inner`.
    pub fn new(inner: B, plan: Plan) -> Self {
        Self { inner, state: Mutex::new(State { plan, counts: [0; 6], failed: 0 }) }
    }

    /// Returns how many calls were made to go wrong.
    pub fn faults(&self) -> u64 {
        self.state().failed
    }

    /// Replaces the plan and counts from 1 again.
    pub fn set_plan(&self, plan: Plan) {
        let mut state = self.state();
        state.plan = plan;
        state.counts = [0; 6];
    }

    /// Returns how many calls of this kind there were under its plan.
    pub fn calls(&self, call: Call) -> u64 {
        self.state().counts[call as usize]
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn effect(&self, call: Call) -> Option<Effect> {
        let mut state = self.state();
        let State { plan, counts, failed } = &mut *state;
        counts[call as usize] += 1;
        let nth = counts[call as usize];
        let exact = plan.planned.iter().find(|(of, at, _)| *of == call && *at == nth);
        let later = || plan.from.iter().find(|(of, at, _)| *of == call && *at <= nth);
        let planned = exact.or_else(later).map(|&(_, _, effect)| effect);
        let effect = planned.or_else(|| {
            let (seed, threshold) = plan.random?;
            let random = mix(seed ^ mix(nth) ^ mix((call as u64) << 56));
            (random < threshold).then_some(match mix(random) & 1 {
                0 => Effect::FailBefore,
                _ => Effect::FailAfter,
            })
        });
        *failed += u64::from(effect.is_some());
        let takes = plan.takes;
        drop(state);
        thread::sleep(takes);
        effect
    }

    fn change<T>(&self, call: Call, run: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.effect(call) {
            Some(Effect::FailBefore) => Err(fault(call)),
            Some(Effect::FailAfter) => run().and_then(|_| Err(fault(call))),
            Some(Effect::FlipBit(_)) | None => run(),
        }
    }

    fn read(
        &self,
        call: Call,
        run: impl FnOnce() -> Result<Option<Bytes>, StoreError>,
    ) -> Result<Option<Bytes>, StoreError> {
        match self.effect(call) {
            Some(Effect::FailBefore | Effect::FailAfter) => Err(fault(call)),
            Some(Effect::FlipBit(bit)) => Ok(run()?.map(|value| flip(&value, bit))),
            None => run(),
        }
    }
}

/// Lives once with each call of each kind that the life makes, going wrong in each way. `live` gets a new store in memory, and what goes
/// wrong there in words. It may end the faults with another plan. Returns how many calls went wrong.
pub fn at_each_call(mut live: impl FnMut(&Arc<Faulty<MemoryStore>>, Call, Effect, &str)) -> u64 {
    use Call::{DeleteManifest, GetChunk, GetManifest, PrefetchChunks, PutChunk, PutManifest};
    let mut faults = 0;
    for call in [PutChunk, GetChunk, PutManifest, GetManifest, DeleteManifest, PrefetchChunks] {
        for effect in [Effect::FailBefore, Effect::FailAfter, Effect::FlipBit(100)] {
            for nth in 1.. {
                let store = Arc::new(Faulty::new(MemoryStore::new(), Plan::new().with(call, nth, effect)));
                live(&store, call, effect, &format!("{call:?} {nth}, {effect:?}"));
                if store.faults() == 0 {
                    break;
                }
                faults += 1;
            }
        }
    }
    faults
}

fn fault(call: Call) -> StoreError {
    StoreError::io(format!("{call:?}"))(io::Error::other("a planned fault"))
}

fn flip(value: &[u8], bit: u64) -> Bytes {
    let mut value = value.to_vec();
    let bits = value.len() as u64 * 8;
    if bits > 0 {
        let bit = bit % bits;
        value[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    value.into()
}

/// SplitMix64's finalizer.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Batches make one call after another, as the trait's defaults do, so that each can fail.
impl<B: Backend> Backend for Faulty<B> {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.change(Call::PutChunk, || self.inner.put_chunk(hash, data))
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.read(Call::GetChunk, || self.inner.get_chunk(hash))
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.change(Call::PutManifest, || self.inner.put_manifest(name, data))
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        self.read(Call::GetManifest, || self.inner.get_manifest(name))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.change(Call::DeleteManifest, || self.inner.delete_manifest(name))
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let mut revision = None;
        let value = self.read(Call::GetManifest, || {
            let there = self.inner.manifest_revision(name)?;
            Ok(there.map(|(value, of)| {
                revision = Some(of);
                value
            }))
        })?;
        Ok(value.zip(revision))
    }

    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        self.change(Call::DeleteManifest, || self.inner.delete_revision(name, revision))
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        self.change(Call::PrefetchChunks, || self.inner.prefetch_chunks(hashes))
    }

    forward!(inner: batch, reread_chunk, absent_chunks, tiers, inventory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compares, contract};

    #[test]
    fn fails_the_call_it_is_told_to() {
        let [a, b] = [[1; 32], [2; 32]].map(ChunkHash::from);
        let name = ManifestName::new("m").unwrap();
        let plan = Plan::new()
            .with(Call::PutChunk, 1, Effect::FailBefore)
            .with(Call::PutChunk, 3, Effect::FailAfter)
            .with(Call::GetChunk, 2, Effect::FlipBit(9));
        let store = Faulty::new(MemoryStore::default(), plan);
        assert!(store.put_chunk(&a, b"one").is_err());
        assert_eq!(store.put_chunk(&a, b"one").unwrap(), Put::Stored);
        assert!(store.put_chunk(&b, b"two").is_err());
        assert_eq!(store.put_chunk(&b, b"two").unwrap(), Put::AlreadyThere);
        store.put_manifest(&name, b"m").unwrap();
        let got = store.get_chunks(&[a, a, b]).unwrap();
        assert_eq!(got[0].as_deref(), Some(&b"one"[..]));
        assert_eq!(got[1].as_deref(), Some(&b"ole"[..]));
        assert_eq!(got[2].as_deref(), Some(&b"two"[..]));
        assert_eq!(store.faults(), 3);
        assert_eq!(store.calls(Call::PutChunk), 4);
        store.set_plan(Plan::new().with_all_from(Call::GetChunk, 2, Effect::FailBefore));
        let failed = [(); 3].map(|()| store.get_chunk(&a).is_err());
        assert_eq!(failed, [false, true, true]);
        store.set_plan(Plan::new().with(Call::GetManifest, 1, Effect::FailAfter));
        assert!(store.get_manifest(&name).is_err());
        assert!(store.get_manifest(&name).is_ok());
    }

    #[test]
    fn random_faults_come_again_with_their_seed() {
        let run = |seed| {
            let plan = Plan::new().with_random(seed, 0.3);
            let store = Faulty::new(MemoryStore::default(), plan);
            (0..1000_u32)
                .map(|n| store.put_chunk(&blake3::hash(&n.to_le_bytes()).into(), b"").is_err())
                .collect::<Vec<bool>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let failed = run(3).into_iter().filter(|failed| *failed).count();
        assert!((200..400).contains(&failed), "{failed}");
        let none = Faulty::new(MemoryStore::default(), Plan::new().with_random(1, 0.0));
        assert!(none.put_manifest(&ManifestName::new("").unwrap(), b"").is_ok());
    }

    #[test]
    fn without_a_plan_it_is_the_backend() {
        let store = MemoryStore::new();
        contract("faulty", Compares::InOneStep, &|| Arc::new(Faulty::new(store.clone(), Plan::new())));
    }
}
