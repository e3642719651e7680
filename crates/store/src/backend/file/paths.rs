//! Where each file of a store lies below its root. Whatever comes from outside becomes hex here.

use std::io;

use crate::hash::ChunkHash;

/// Says that a folder is a store, and which version of the layout it has.
pub(super) const MARKER: &str = "kv_store_format";
/// The marker of a store that is being made.
pub(super) const NEW_MARKER: &str = "kv_store_format.new";
/// Changes with every pack that comes or goes.
pub(super) const GENERATION: &str = "generation";
/// How much of the cap is taken.
pub(super) const USAGE: &str = "usage";
/// Held shared to publish, exclusively to collect.
pub(super) const STORE_LOCK: &str = "store.lock";
/// Held while waiting for [`STORE_LOCK`], so that neither side starves.
pub(super) const GATE_LOCK: &str = "gate.lock";
/// Files that are being written.
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const PACKS: &str = "packs";
pub(super) const MANIFESTS: &str = "manifests";

/// Behind the name of what is on its way.
const AWAY: &str = ".away";

/// Files of the root that a store has from its beginning, beside the marker.
pub(super) const ROOT_FILES: [&str; 4] = [GENERATION, USAGE, STORE_LOCK, GATE_LOCK];

/// Number of folders of packs. They are made with the store, so that no save has to flush a new folder; a
/// process lists all of them when another one has published, and 16 take 60 us.
const PACK_FOLDERS: u32 = 16;
/// Number of folders of manifests: a million of them are 4,000 to a folder.
const MANIFEST_FOLDERS: u32 = 256;

/// The random name of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PackId([u8; 16]);

impl PackId {
    pub(super) fn random() -> io::Result<Self> {
        random().map(Self)
    }

    /// `packs/3/3f…e9.pack`
    pub(super) fn path(&self) -> String {
        let name = hex(&self.0);
        format!("{PACKS}/{}/{name}.pack", &name[..1])
    }

    /// `packs/3`
    pub(super) fn folder(&self) -> String {
        format!("{PACKS}/{:x}", self.0[0] >> 4)
    }

    /// The empty file that says that the pack's copy of a chunk is damaged: `packs/3/3f…e9.HASH.damaged`
    pub(super) fn note(&self, hash: &ChunkHash) -> String {
        format!("{}/{}.{hash}.damaged", self.folder(), hex(&self.0))
    }

    /// From the name of such a file, with the chunk.
    pub(super) fn of_note(folder: &str, name: &str) -> Option<(Self, ChunkHash)> {
        let (digits, hash) = name.strip_suffix(".damaged")?.split_once('.')?;
        let id = Self(unhex(digits)?);
        (id.folder() == folder).then_some((id, hash.parse().ok()?))
    }

    /// From a file's name, if it is one of a pack and lies in its folder.
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

/// Where the manifest of this name lies, whatever the name is: `manifests/3f/3f…e9`.
pub(super) fn manifest(name: &str) -> String {
    let digits = blake3::hash(name.as_bytes()).to_hex();
    format!("{MANIFESTS}/{}/{digits}", &digits[..2])
}

/// The name that a file has on its way from its place and back, in the same folder.
pub(super) fn away(path: &str) -> String {
    format!("{path}{AWAY}")
}

/// The name of a manifest's place, from that of a file which lies there or is away from there.
pub(super) fn place_of<'a>(folder: &str, name: &'a str) -> Option<&'a str> {
    let place = name.strip_suffix(AWAY).unwrap_or(name);
    unhex::<32>(place)?;
    folder.ends_with(&place[..2]).then_some(place)
}

/// A new name for an empty file that says that a manifest is going to change: `tmp/ID.HEX.intent`
pub(super) fn intent(manifest: &str) -> io::Result<String> {
    let digits = manifest.rsplit('/').next().unwrap_or(manifest);
    temporary(&format!("{digits}.intent"))
}

/// The path of the manifest that such a file is about.
pub(super) fn intended(name: &str) -> Option<String> {
    let (_, digits) = name.strip_suffix(".intent")?.split_once('.')?;
    unhex::<32>(digits)?;
    Some(format!("{MANIFESTS}/{}/{digits}", &digits[..2]))
}

/// The folder that holds a file.
pub(super) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A name in [`TEMPORARY`] that nobody has.
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

/// Lower-case digits only: there is one name for each value.
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
