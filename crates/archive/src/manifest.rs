//! The encoding of the manifests that this crate writes.
//!
//! A record is eight magic bytes, a body in postcard, and the BLAKE3-256 of both. In postcard, unsigned integers are
//! LEB128, texts and lists begin with their length, an option is 0 or 1 and the value, and 32-byte hashes are
//! unchanged.

use serde::{Serialize, de::DeserializeOwned};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(crate) &'static str);

pub(crate) fn encode(magic: &[u8; 8], record: &impl Serialize) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(postcard::to_allocvec(record).expect("lists and numbers always encode"));
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes
}

pub(crate) fn decode<T: DeserializeOwned>(magic: &[u8; 8], bytes: &[u8]) -> Result<T, Unreadable> {
    let Some((signed, sum)) = bytes.split_last_chunk::<32>() else {
        return Err(Unreadable("it is too short"));
    };
    let Some(body) = signed.strip_prefix(magic) else {
        return Err(Unreadable("it does not begin as such a record of this version does"));
    };
    if blake3::hash(signed) != *sum {
        return Err(Unreadable("its checksum does not match"));
    }
    match postcard::take_from_bytes(body) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(Unreadable("there is more in it than a record")),
        Err(_) => Err(Unreadable("its fields cannot be read")),
    }
}
