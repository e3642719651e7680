//! Listing of objects.

use std::collections::HashMap;
use std::time::SystemTime;

use transload_store::internal::readable;
use transload_store::{ManifestName, StoreError};

use super::record::Record;
use super::{Info, ObjectError, Objects, name};

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The object's key.
    pub key: Vec<u8>,
    /// The object's length and meta.
    pub info: Info,
    /// The time of the last put, read or look-up, as exactly as the store knows it.
    pub last_used: Option<SystemTime>,
}

impl Objects {
    /// Lists the objects of this namespace, in no particular order. Where the store can avoid it, last-used times are
    /// not updated. Unreadable objects are left out.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the store has no listing, as behind `kv_store_v1`; or an error of the store.
    pub fn list(&self) -> Result<Vec<Listed>, ObjectError> {
        let inventory = self.store.inventory().ok_or(StoreError::Unsupported {
            what: "listing objects",
            why: "this store cannot list what it has".to_owned(),
        })?;
        let beginning = name::beginning(&self.namespace);
        let mut used = HashMap::new();
        inventory.manifests(&mut |entry| {
            if entry.name.as_str().starts_with(&beginning) {
                used.insert(entry.name, entry.last_used);
            }
            Ok(())
        })?;
        let names: Vec<ManifestName> = used.keys().cloned().collect();
        let mut listed = Vec::with_capacity(names.len());
        for names in names.chunks(self.store.batch().max(1)) {
            let manifests = readable(names, |names| inventory.peek_manifests(names))?;
            for (name, manifest) in names.iter().zip(manifests) {
                // It may have been removed since it was listed.
                let record = manifest.and_then(|manifest| Record::read(name, &manifest)?.ok());
                if let Some(record) = record.filter(|record| record.namespace[..] == *self.namespace) {
                    listed.push(Listed {
                        key: record.key.clone(),
                        info: record.info(),
                        last_used: used.get(name).copied().flatten(),
                    });
                }
            }
        }
        Ok(listed)
    }
}
