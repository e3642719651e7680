//! Reading from tier to tier, and promotion of what was found.

use bytes::Bytes;

use super::TierStore;
use super::names::copy_name;
use crate::backend::{Backend, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::reading::readable;

/// For each key, the value and the tier where it was found.
type Found = Vec<Option<(usize, Bytes)>>;

impl TierStore {
    pub(super) fn read_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let last = self.tiers.len() - 1;
        let found = self.descend(hashes, 0..=last, |at| at == last, |store, hashes| store.get_chunks(hashes))?;
        for (hash, found) in hashes.iter().zip(&found) {
            let Some((at, data)) = found else { continue };
            for tier in self.tiers[..*at].iter().rev() {
                let new = tier.copy_chunk(hash, data) == Some(Put::Stored);
                tier.count(|stats| &mut stats.promotions, usize::from(new));
            }
        }
        Ok(values(found))
    }

    pub(super) fn read_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let found = self.descend(names, self.true_tiers(), |_| true, |store, names| store.get_manifests(names))?;
        self.renew_copies(names, &found);
        Ok(values(found))
    }

    /// Asks one tier after another for the missing values. A failing tier is skipped, unless `must_answer`.
    fn descend<K: Clone>(
        &self,
        keys: &[K],
        tiers: impl IntoIterator<Item = usize>,
        must_answer: impl Fn(usize) -> bool,
        read: impl Fn(&dyn Backend, &[K]) -> Result<Vec<Option<Bytes>>, StoreError>,
    ) -> Result<Found, StoreError> {
        let mut found: Found = vec![None; keys.len()];
        for at in tiers {
            let missing: Vec<usize> = (0..keys.len()).filter(|&n| found[n].is_none()).collect();
            let asked: Vec<K> = missing.iter().map(|&n| keys[n].clone()).collect();
            if asked.is_empty() {
                break;
            }
            let tier = &self.tiers[at];
            let answer = match must_answer(at) {
                true => read(&*tier.store, &asked),
                // A damaged value counts as missing. It is put again after it was found in a lower tier.
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
                    if must_answer(at) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Makes the copies of manifests match the last tier. Equal copies count as used, others are replaced. Copies of
    /// missing manifests are removed, so that their chunks can be collected.
    fn renew_copies(&self, names: &[ManifestName], found: &Found) {
        let last = self.tiers.len() - 1;
        let settled = names.iter().zip(found).filter_map(|(name, found)| {
            let data = match found {
                Some((at, _)) if *at < last => return None,
                found => found.as_ref().map(|(_, data)| data),
            };
            Some((copy_name(name)?, data))
        });
        let (copies, wanted): (Vec<ManifestName>, Vec<Option<&Bytes>>) = settled.unzip();
        for tier in self.tiers[..last].iter().rev().filter(|tier| !tier.is_cache) {
            let Ok(there) = readable(&copies, |copies| tier.store.get_manifests(copies)) else {
                tier.count(|stats| &mut stats.failures, 1);
                continue;
            };
            let mut missing = Vec::new();
            for ((copy, wanted), there) in copies.iter().zip(&wanted).zip(there) {
                match wanted {
                    Some(data) if there.as_ref() != Some(data) => {
                        missing.push((copy.clone(), Bytes::clone(data)));
                    }
                    None if there.is_some() => tier.drop_manifest(copy),
                    _ => {}
                }
            }
            if !missing.is_empty() && tier.copy_manifests(&missing) {
                tier.count(|stats| &mut stats.promotions, missing.len());
            }
        }
    }
}

fn values(found: Found) -> Vec<Option<Bytes>> {
    let values = found.into_iter();
    values.map(|found| Some(found?.1)).collect()
}
