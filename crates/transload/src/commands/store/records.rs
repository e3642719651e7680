//! The manifests whose format this program knows: their contents, and checks of their pieces.

use std::collections::{BTreeMap, HashMap, HashSet};

use transload::archive::{self, objects};
use transload::store::backend::{Fault, Inventory, ManifestEntry};
use transload::store::internal::readable;
use transload::store::{Backend, ChunkHash, ManifestName, StoreError};

use super::objects::{Shown, short};
use crate::show::{number, text};

enum Known {
    Archive(archive::Record),
    Object(objects::Record),
}

impl Known {
    /// Returns whether a manifest of this name may have a known format.
    fn may_be(name: &ManifestName) -> bool {
        [archive::NAMES, objects::NAMES].iter().any(|names| name.as_str().contains(names))
    }

    fn read(name: &ManifestName, manifest: &[u8]) -> Option<Result<Self, StoreError>> {
        match objects::Record::read(name, manifest) {
            Some(object) => Some(object.map(Self::Object)),
            None => Some(archive::Record::read(name, manifest)?.map(Self::Archive)),
        }
    }

    fn pieces(&self) -> Vec<ChunkHash> {
        match self {
            Self::Archive(root @ archive::Record::Root { .. }) => root.pieces().copied().collect(),
            // Parts are not read by readers.
            Self::Archive(_) => Vec::new(),
            Self::Object(object) => object.pieces().collect(),
        }
    }

    fn called(&self) -> &'static str {
        match self {
            Self::Archive(_) => "saved prefix",
            Self::Object(_) => "object",
        }
    }
}

/// The contents of a store's manifests that are shown in addition to their names.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// The engines that computed saved prefixes, as far as recorded.
    origins: HashMap<ManifestName, String>,
    /// The codecs of saved prefixes that are not stored exactly.
    codecs: HashMap<ManifestName, &'static str>,
    objects: HashMap<ManifestName, Shown>,
}

impl Details {
    /// Reads all roots and objects among these manifests, in batches. Unreadable ones are left to verification.
    pub(super) fn read(
        inventory: &dyn Inventory,
        batch: usize,
        manifests: &[ManifestEntry],
    ) -> Result<Self, StoreError> {
        let names = manifests.iter().map(|entry| &entry.name);
        let names = names.filter(|name| Known::may_be(name)).cloned();
        let names: Vec<ManifestName> = names.collect();
        let mut details = Self::default();
        for name in names.chunks(batch.max(1)) {
            let found = readable(name, |names| inventory.peek_manifests(names))?;
            for (name, manifest) in name.iter().zip(found) {
                match manifest.and_then(|manifest| Known::read(name, &manifest)) {
                    Some(Ok(Known::Archive(archive::Record::Root { computed_by, codec, .. }))) => {
                        if let Some(by) = computed_by {
                            details.origins.insert(name.clone(), by.to_string());
                        }
                        if !codec.is_exact() {
                            details.codecs.insert(name.clone(), codec.name());
                        }
                    }
                    Some(Ok(Known::Object(object))) => {
                        details.objects.insert(name.clone(), object.into());
                    }
                    _ => {}
                }
            }
        }
        Ok(details)
    }

    pub(super) fn origin(&self, name: &ManifestName) -> Option<&str> {
        self.origins.get(name).map(String::as_str)
    }

    /// Returns the codec of a saved prefix that is not stored exactly.
    pub(super) fn codec(&self, name: &ManifestName) -> Option<&'static str> {
        self.codecs.get(name).copied()
    }

    pub(super) fn object(&self, name: &ManifestName) -> Option<&Shown> {
        self.objects.get(name)
    }

    /// Formats a line for each engine, each codec, and each namespace of objects.
    pub(super) fn lines(&self) -> String {
        let mut roots: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let engines = self.origins.values().map(|by| ("computed by", by.as_str()));
        let codecs = self.codecs.values().map(|codec| ("stored as", *codec));
        for of in engines.chain(codecs) {
            *roots.entry(of).or_default() += 1;
        }
        let lines = roots.into_iter().map(|((how, name), roots)| {
            let roots = number::count(roots, "saved token chunk");
            format!(" {roots} {how} {}\n", text::printable(name))
        });
        let mut namespaces: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for object in self.objects.values() {
            let (objects, bytes) = namespaces.entry(&object.namespace).or_default();
            *objects += 1;
            *bytes = bytes.saturating_add(object.bytes);
        }
        let objects = namespaces.into_iter().map(|(namespace, (objects, bytes))| {
            let (objects, bytes) = (number::count(objects, "object"), number::bytes(bytes));
            format!(" {objects} of {bytes} in namespace {}\n", short(namespace))
        });
        lines.chain(objects).collect()
    }
}

/// Finds roots, parts and objects that cannot be read, and pieces that are missing. `fault` also gets the name of the
/// manifest.
pub(super) fn verify(
    store: &dyn Backend,
    inventory: &dyn Inventory,
    fault: &mut dyn FnMut(&ManifestName, Fault),
) -> Result<(), StoreError> {
    let mut names = Vec::new();
    inventory.manifests(&mut |entry| {
        if Known::may_be(&entry.name) {
            names.push(entry.name);
        }
        Ok(())
    })?;
    if names.is_empty() {
        return Ok(());
    }
    let mut chunks = HashSet::new();
    inventory.chunks(&mut |entry| {
        chunks.insert(entry.hash);
        Ok(())
    })?;
    for names in names.chunks(store.batch().max(1)) {
        for (name, manifest) in names.iter().zip(inventory.peek_manifests(names)?) {
            // A manifest may have been deleted since it was listed.
            let Some(manifest) = manifest else { continue };
            let record = match Known::read(name, &manifest) {
                Some(Ok(record)) => record,
                Some(Err(StoreError::Damaged { what, how })) => {
                    fault(name, Fault { what, how });
                    continue;
                }
                Some(Err(error)) => return Err(error),
                None => continue,
            };
            let pieces = record.pieces().into_iter();
            let gone = pieces.filter(|piece| !chunks.contains(piece)).count() as u64;
            if gone > 0 {
                let what = format!("{} {name}", record.called());
                let how = match gone {
                    1 => "one of its pieces is missing".to_owned(),
                    _ => format!("{} are missing", number::count(gone, "piece")),
                };
                fault(name, Fault { what, how });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use transload::archive::{Archive, ComputedBy, Model, Prompt, SaveRequest, Sharing, TOKEN_CHUNK};
    use transload::layout::Rank;
    use transload::store::backend::file::{FileOptions, FileStore};
    use transload::transfer::{BlockTable, Memory, Tables};

    use super::*;
    use crate::commands::shapes::Llama;

    /// A batch that cannot be read because of one of it tells of the others.
    #[test]
    fn one_damaged_root_leaves_the_origins_of_the_others() {
        const TOKENS: u64 = 4 * TOKEN_CHUNK;
        let shape = Llama {
            name: "saver",
            model: "small",
            layers: 1,
            heads: 1,
            tp: 1,
            block_size: TOKENS as u32,
            num_blocks: 1,
            order: "NHD",
        };
        let folder = tempfile::tempdir().expect("a folder");
        let store = FileStore::open(folder.path(), FileOptions::default()).expect("a store");
        let store = Arc::new(store);
        let deployment = shape.deployment().expect("a deployment");
        let by = ComputedBy::new("vllm", "0.32.0");
        let model = Model::new("small", "").with_engine(by, Sharing::Any);
        let archive = Archive::new(store.clone(), model, &deployment).expect("an archive");
        let tokens: Vec<u32> = (0..TOKENS as u32).collect();
        let request = SaveRequest::tokens(TOKENS);
        let missing = archive.missing(&Prompt::new(&tokens), &request).expect("what to save");
        let bytes = deployment.groups()[0].placement(0).allocation_bytes as usize;
        let caches = [Memory::allocate(&[bytes]).expect("memory")];
        let rank = archive.rank(&deployment, Rank(0)).expect("a rank");
        let part = rank.save(&missing, &caches, &Tables(vec![BlockTable::Identity]));
        archive.publish(&missing, &[part.expect("a part")]).expect("published");

        let mut entries = Vec::new();
        let listed = store.manifests(&mut |entry| {
            entries.push(entry);
            Ok(())
        });
        listed.expect("a list");
        assert_eq!(entries.len(), 4);
        let folders = std::fs::read_dir(folder.path().join("manifests")).expect("folders");
        let mut files = folders.flat_map(|sub| std::fs::read_dir(sub.expect("one").path()).expect("files"));
        let file = files.next().expect("a manifest").expect("a file").path();
        let whole = std::fs::read(&file).expect("a file");
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, &whole[..whole.len() / 2]).expect("written");
        let details = Details::read(&*store, 1024, &entries).expect("what they tell");
        let mut origins: Vec<_> = entries.iter().map(|entry| details.origin(&entry.name)).collect();
        origins.sort();
        let by = Some("vllm 0.32.0");
        assert_eq!(origins, [None, by, by, by]);
    }
}
