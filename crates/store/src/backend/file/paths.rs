//! Paths of a store's files, relative to its root. Names from outside are hashed or hex-encoded here.

use std::io;

use crate::hash::ChunkHash;

/// The file that marks a folder as a store and holds the version of its layout.
pub(super) const MARKER: &str = "kv_store_format";
pub(super) const NEW_MARKER: &str = "kv_store_format.new";
/// The file whose content changes whenever a pack is added or removed.
pub(super) const GENERATION: &str = "generation";
/// The file that counts the space used, for the cap.
pub(super) const USAGE: &str = "usage";
/// The lock that publishers hold shared and a collection exclusively.
pub(super) const STORE_LOCK: &str = "store.lock";
/// The lock held while waiting for [`STORE_LOCK`], so that neither side starves.
pub(super) const GATE_LOCK: &str = "gate.lock";
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const PACKS: &str = "packs";
pub(super) const MANIFESTS: &str = "manifests";

/// The suffix of a manifest that is away from its place (see [`super::place`]).
const AWAY: &str = ".away";

/// Files of the root that every store has from its creation on, in addition to the marker.
pub(super) const ROOT_FILES: [&str; 4] = [GENERATION, USAGE, STORE_LOCK, GATE_LOCK];

/// The number of pack folders. They are created with the store, so that no save has to flush a new folder. A process
/// lists all of them after another has published, which takes 60 us for 16.
const PACK_FOLDERS: u32 = 16;
/// The number of manifest folders. A million manifests are 4,000 to a folder.
const MANIFEST_FOLDERS: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PackId([u8; 16]);

impl PackId {
    pub(super) fn random() -> io::Result<Self> {
        random().map(Self)
    }

    /// Returns a path such as `packs/3/3f…e9.pack`.
    pub(super) fn path(&self) -> String {
        let name = hex(&self.0);
        format!("{PACKS}/{}/{name}.pack", &name[..1])
    }

    /// Returns a path such as `packs/3`.
    pub(super) fn folder(&self) -> String {
        format!("{PACKS}/{:x}", self.0[0] >> 4)
    }

    /// Returns the path of the empty file that notes a damaged copy of a chunk: `packs/3/3f…e9.HASH.damaged`.
    pub(super) fn note(&self, hash: &ChunkHash) -> String {
        format!("{}/{}.{hash}.damaged", self.folder(), hex(&self.0))
    }

    pub(super) fn of_note(folder: &str, name: &str) -> Option<(Self, ChunkHash)> {
        let (digits, hash) = name.strip_suffix(".damaged")?.split_once('.')?;
        let id = Self(unhex(digits)?);
        (id.folder() == folder).then_some((id, hash.parse().ok()?))
    }

    /// Parses the name of a pack's file, if it is in the right folder.
    pub(super) fn of_file(folder: &str, name: &str) -> Option<Self> {
        let digits = name.strip_suffix(".pack")?;
        let id = Self(unhex(digits)?);
        (id.folder() == folder).then_some(id)
    }
}

pub(super) fn pack_folders() -> impl Iterator<Item = String> {
    (0..PACK_FOLDERS).map(|n| format!("{PACKS}/{n:x}"))
}

pub(super) fn manifest_folders() -> impl Iterator<Item = String> {
    (0..MANIFEST_FOLDERS).map(|n| format!("{MANIFESTS}/{n:02x}"))
}

/// Returns the path of the manifest of this name: `manifests/3f/3f…e9`.
pub(super) fn manifest(name: &str) -> String {
    let digits = blake3::hash(name.as_bytes()).to_hex();
    format!("{MANIFESTS}/{}/{digits}", &digits[..2])
}

/// Returns the name that a file of this path has while it is away, in the same folder.
pub(super) fn away(path: &str) -> String {
    format!("{path}{AWAY}")
}

/// Returns the file name of a manifest's place, from the name of its file there or away.
pub(super) fn place_of<'a>(folder: &str, name: &'a str) -> Option<&'a str> {
    let place = name.strip_suffix(AWAY).unwrap_or(name);
    unhex::<32>(place)?;
    folder.ends_with(&place[..2]).then_some(place)
}

/// Returns a new path for the empty file that announces a change of a manifest: `tmp/ID.HEX.intent`.
pub(super) fn intent(manifest: &str) -> io::Result<String> {
    let digits = manifest.rsplit('/').next().unwrap_or(manifest);
    temporary(&format!("{digits}.intent"))
}

pub(super) fn intended(name: &str) -> Option<String> {
    let (_, digits) = name.strip_suffix(".intent")?.split_once('.')?;
    unhex::<32>(digits)?;
    Some(format!("{MANIFESTS}/{}/{digits}", &digits[..2]))
}

pub(super) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

pub(super) fn temporary(extension: &str) -> io::Result<String> {
    Ok(format!("{TEMPORARY}/{}.{extension}", hex(&random::<16>()?)))
}

pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hex. Only lower-case digits are accepted, so that each value has one name.
fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{away, folder_of, intended, intent, manifest, place_of};

    #[test]
    fn names_of_files_say_which_manifest_they_are_about() {
        let path = manifest("m");
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        assert_eq!(intended(&name(&intent(&path).unwrap())), Some(path.clone()));
        let (folder, place) = (folder_of(&path), name(&path));
        for file in [&*path, &away(&path)] {
            assert_eq!(place_of(folder, &name(file)), Some(&*place));
        }
        let elsewhere = ["manifests/00", "manifests/01"].iter();
        let elsewhere = elsewhere.filter(|other| **other != folder);
        for other in elsewhere {
            assert_eq!(place_of(other, &place), None);
        }
        for wrong in [".away", "x.away", &away(&away(&place)), &place[1..], ""] {
            assert_eq!(place_of(folder, wrong), None, "{wrong}");
        }
    }
}
