//! The operator's interface of a tier store: it combines those of the tiers.

use std::collections::HashSet;

use bytes::Bytes;

use super::{Tier, TierStore, names};
use crate::backend::{ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage};
use crate::error::StoreError;
use crate::name::ManifestName;

impl TierStore {
    fn inventories(&self) -> impl Iterator<Item = (&Tier, &dyn Inventory)> {
        let tiers = self.tiers.iter();
        tiers.filter_map(|tier| Some((tier, tier.store.inventory()?)))
    }

    fn inventories_of_manifests(&self) -> impl Iterator<Item = &dyn Inventory> {
        self.true_tiers().filter_map(|at| self.tiers[at].store.inventory())
    }
}

impl Inventory for TierStore {
    /// Visits each manifest once: the pending ones, and those of the last tier.
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        for inventory in self.inventories_of_manifests() {
            inventory.manifests(
                &mut |entry| match !names::is_copy(&entry.name) && seen.insert(entry.name.clone()) {
                    true => visit(entry),
                    false => Ok(()),
                },
            )?;
        }
        Ok(())
    }

    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut found: Vec<Option<Bytes>> = vec![None; names.len()];
        for inventory in self.inventories_of_manifests() {
            let missing: Vec<usize> = (0..names.len()).filter(|&n| found[n].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let asked: Vec<ManifestName> = missing.iter().map(|&n| names[n].clone()).collect();
            for (n, value) in missing.into_iter().zip(inventory.peek_manifests(&asked)?) {
                found[n] = value;
            }
        }
        Ok(found)
    }

    /// Visits each chunk once, as in the fastest tier that can be listed.
    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        for (_, inventory) in self.inventories() {
            inventory.chunks(&mut |entry| match seen.insert(entry.hash) {
                true => visit(entry),
                false => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Counts each value once, and the total space of all tiers.
    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        for (_, inventory) in self.inventories() {
            let total = inventory.usage()?.total_bytes;
            usage.total_bytes = usage.total_bytes.saturating_add(total);
        }
        self.manifests(&mut |entry| {
            usage.manifests += 1;
            usage.manifest_bytes += entry.bytes;
            Ok(())
        })?;
        self.chunks(&mut |entry| {
            usage.chunks += 1;
            usage.chunk_bytes += entry.bytes;
            Ok(())
        })?;
        Ok(usage)
    }

    /// Verifies each tier, and adds the tier's name to its faults.
    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
        for (tier, inventory) in self.inventories() {
            inventory.verify(progress, &mut |Fault { what, how }| {
                let how = format!("in {}: {how}", tier.stats().tier);
                fault(Fault { what, how });
            })?;
        }
        Ok(())
    }

    /// Collects in each tier. The cap applies to the last one; the others keep their own.
    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError> {
        self.flush();
        let last = self.tiers.last();
        let mut all = Collected::default();
        for (tier, inventory) in self.inventories() {
            let mut options = options.clone();
            if !last.is_some_and(|last| std::ptr::eq(tier, last)) {
                options.cap = inventory.usage()?.cap;
            }
            let some = inventory.collect(&options, progress)?;
            all.manifests += some.manifests;
            all.leftovers += some.leftovers;
            all.chunks += some.chunks;
            all.bytes += some.bytes;
            all.in_grace += some.in_grace;
            all.damaged += some.damaged;
        }
        Ok(all)
    }

    fn capped(&self) -> Option<&dyn Inventory> {
        self.tiers.last()?.store.inventory()
    }
}
