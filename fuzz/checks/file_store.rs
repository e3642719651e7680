//! The fuzz check of the files of a file store: packs and manifests.

use transload_store::internal::format::checksum;
use transload_store::internal::manifest::Manifest;
use transload_store::internal::pack;

/// Checks the bytes as they are, as an index, and as a manifest after its header. Valid checksums, without which
/// readers stop early, are computed here from the manual's description of the format and not by the store's own code.
pub(crate) fn check(data: &[u8]) {
    check_pack(data);
    check_manifest(data);
    let cut = usize::from(data.first().copied().unwrap_or(0)).min(data.len());
    check_pack(&as_pack(&data[..cut], &data[cut..]));
    check_manifest(&as_manifest(data));
}

fn check_pack(bytes: &[u8]) {
    let Ok(entries) = pack::decode(bytes) else {
        return;
    };
    for entry in entries {
        let end = entry.offset.checked_add(entry.len).expect("it was checked");
        assert!(end <= bytes.len() as u64, "{entry:?} of {} bytes", bytes.len());
    }
}

fn check_manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::decode(bytes) else {
        return;
    };
    let references: Vec<_> = manifest.references().collect();
    assert!(references.is_sorted());
    let len: usize = references.iter().map(|hash| 1 + hash.as_bytes().len()).sum();
    assert_eq!(40 + manifest.name.len() + len + manifest.data.len(), bytes.len());
}

/// Returns a pack of this data and this index.
fn as_pack(data: &[u8], index: &[u8]) -> Vec<u8> {
    // The number of entries if all hashes were as long as the first.
    let entry = 22 + usize::from(index.first().copied().unwrap_or(0));
    let mut trailer = Vec::new();
    trailer.extend((data.len() as u64).to_le_bytes());
    trailer.extend((index.len() as u64).to_le_bytes());
    trailer.extend((index.len().div_ceil(entry - 1) as u32).to_le_bytes());
    trailer.extend(checksum(index).to_le_bytes());
    trailer.extend(1_u32.to_le_bytes());
    trailer.extend(checksum(&trailer).to_le_bytes());
    trailer.extend(b"kvpack\r\n");
    [data, index, &trailer].concat()
}

/// Returns a manifest with this body. The first two bytes are the lengths of name and references.
fn as_manifest(body: &[u8]) -> Vec<u8> {
    let len = |at: usize| usize::from(body.get(at).copied().unwrap_or(0));
    let body = body.get(2..).unwrap_or_default();
    let name = len(0).min(body.len());
    let references = len(1).min(body.len() - name);
    let mut bytes = b"kvmanif\n".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((name as u32).to_le_bytes());
    bytes.extend((references as u64).to_le_bytes());
    bytes.extend(((body.len() - name - references) as u64).to_le_bytes());
    bytes.extend(checksum(body).to_le_bytes());
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes.extend(body);
    bytes
}
