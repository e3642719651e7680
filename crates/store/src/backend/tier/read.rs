//! Going down from tier to tier with what is still missing, and carrying up what was found.

use bytes::Bytes;

use super::names::{changes, try_hold};
use super::{Tier, TierStore};
use crate::backend::{Backend, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::reading::readable;

/// What was found, and in which tier.
type Found = Vec<Option<(usize, Bytes)>>;

impl TierStore {
    pub(super) fn read_chunks(
        &self,
        hashes: &[ChunkHash],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let last = self.tiers.len() - 1;
        let found = self.descend(
            hashes,
            0..=last,
            |_, _| true,
            |at, _| at == last,
            |store, hashes| store.get_chunks(hashes),
        )?;
        for (hash, found) in hashes.iter().zip(&found) {
            let Some((at, data)) = found else { continue };
            for tier in self.tiers[..*at].iter().rev() {
                let new = tier.copy_chunk(hash, data) == Some(Put::Stored);
                tier.count(|stats| &mut stats.promotions, usize::from(new));
            }
        }
        Ok(values(found))
    }

    pub(super) fn read_manifests(
        &self,
        names: &[ManifestName],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let before: Vec<u64> = names.iter().map(changes).collect();
        let found = self.descend(
            names,
            self.of_manifests(),
            |at, name| self.may_ask(at, name),
            |at, name| self.must_answer(at, name),
            |store, names| store.get_manifests(names),
        )?;
        self.carry_up(names, &before, &found);
        Ok(values(found))
    }

    /// The tiers that have manifests.
    pub(super) fn of_manifests(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.tiers.len()).filter(|at| !self.tiers[*at].is_cache)
    }

    /// Whether what a tier says of a manifest can be believed.
    pub(super) fn may_ask(&self, at: usize, name: &ManifestName) -> bool {
        !self.tiers[at].is_outdated(name) && (at <= self.authority || !self.is_late(name))
    }

    /// Whether no tier below can be asked instead.
    pub(super) fn must_answer(&self, at: usize, name: &ManifestName) -> bool {
        at == self.tiers.len() - 1 || at == self.authority && self.is_late(name)
    }

    /// Asks one tier after the other for what is missing. One that fails is passed over, unless it must answer for a key.
    fn descend<K: Clone>(
        &self,
        keys: &[K],
        tiers: impl IntoIterator<Item = usize>,
        may_ask: impl Fn(usize, &K) -> bool,
        must_answer: impl Fn(usize, &K) -> bool,
        read: impl Fn(&dyn Backend, &[K]) -> Result<Vec<Option<Bytes>>, StoreError>,
    ) -> Result<Found, StoreError> {
        let mut found: Found = vec![None; keys.len()];
        for at in tiers {
            let missing = (0..keys.len()).filter(|&n| found[n].is_none() && may_ask(at, &keys[n]));
            let missing: Vec<usize> = missing.collect();
            let asked: Vec<K> = missing.iter().map(|&n| keys[n].clone()).collect();
            if asked.is_empty() {
                continue;
            }
            let tier = &self.tiers[at];
            let must = asked.iter().any(|key| must_answer(at, key));
            let answer = match must {
                true => read(&*tier.store, &asked),
                // A value that is damaged here is missing, and is put again when it was found below.
                false => readable(&asked, |keys| read(&*tier.store, keys)),
            };
            match answer {
                Ok(values) => {
                    tier.answered(&values);
                    for (n, value) in missing.into_iter().zip(values) {
                        found[n] = value.map(|value| (at, value));
                    }
                }
                Err(error) => {
                    tier.count(|stats| &mut stats.failures, 1);
                    if must {
                        return Err(error);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Puts manifests into the tiers above the one that had them, unless they were changed since they were looked for, or are
    /// being changed now.
    fn carry_up(&self, names: &[ManifestName], before: &[u64], found: &Found) {
        for at in self.of_manifests() {
            let above: Vec<&Tier> = self
                .of_manifests()
                .take_while(|above| *above < at)
                .map(|above| &self.tiers[above])
                .collect();
            let here = names.iter().zip(before).zip(found);
            let here: Vec<_> = here
                .filter_map(|((name, before), found)| match found {
                    Some((tier, data)) if *tier == at => Some((name, *before, data)),
                    _ => None,
                })
                .collect();
            if above.is_empty() || here.is_empty() {
                continue;
            }
            let held = try_hold(here.iter().map(|(name, ..)| *name));
            let same = here
                .into_iter()
                .filter(|(name, before, _)| held.is_unchanged(name, *before));
            let same: Vec<_> = same
                .map(|(name, _, data)| (name.clone(), data.clone()))
                .collect();
            if same.is_empty() {
                continue;
            }
            for tier in above.iter().rev() {
                let put = tier.copy_manifests(&same);
                tier.count(
                    |stats| &mut stats.promotions,
                    if put { same.len() } else { 0 },
                );
            }
            // Another process may have changed one meanwhile. It changes this tier first and then those above, so that
            // what it puts later stays.
            let names: Vec<ManifestName> = same.iter().map(|(name, _)| name.clone()).collect();
            let now = self.tiers[at]
                .store
                .get_manifests(&names)
                .unwrap_or_else(|_| vec![None; names.len()]);
            for ((name, data), now) in same.iter().zip(now) {
                if now.as_ref() != Some(data) {
                    above.iter().for_each(|tier| tier.drop_manifest(name));
                }
            }
        }
    }
}

fn values(found: Found) -> Vec<Option<Bytes>> {
    let values = found.into_iter();
    values.map(|found| Some(found?.1)).collect()
}
