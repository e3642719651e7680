//! Damaged files give the same errors as erllama's.

use std::collections::BTreeSet;

use serde_json::Value;
use transload_archive::kvc::{CacheKey, KvcError, parse};

use crate::vectors::{self, told, told_error};

/// Returns the result of a full read: `Null`, or the error in the form of the vectors.
fn full(file: &[u8], key: &CacheKey) -> Value {
    let read = parse(file).and_then(|kvc| kvc.verify(Some(key)));
    read.map_or_else(|error| told_error(&error), |()| Value::Null)
}

#[test]
fn every_error_is_that_of_erllama() {
    let vectors = vectors::all("corrupt");
    assert_eq!(vectors.len(), 28);
    for vector in vectors {
        let name = &vector.name;
        let file = vector.file("corrupt").unwrap();
        match parse(&file) {
            Ok(kvc) => {
                assert_eq!(vector.said["parse_meta"], Value::Null, "{name}");
                assert_eq!(Some(told(&kvc.info)), vector.info(), "{name}");
            }
            Err(error) => assert_eq!(vector.said["parse_meta"], told_error(&error), "{name}"),
        }
        assert_eq!(full(&file, &vector.key()), vector.said["parse"], "{name}");
        let wrong = full(&file, &[0; 32].into());
        assert_eq!(wrong, vector.said["parse_wrong_key"], "{name}");
    }
}

fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let golden = vectors::all("golden").swap_remove(0);
    let mut file = golden.file("golden").unwrap();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// The offsets of the values of TLV 02 and 03 in that file.
const MODE: usize = 0x7f;
const QUANT: usize = 0x85;

#[test]
fn every_error_there_is_can_happen() {
    let mut seen = BTreeSet::new();
    for vector in vectors::all("corrupt") {
        for way in ["parse_meta", "parse", "parse_wrong_key"] {
            seen.extend(vector.said[way]["tag"].as_str().map(str::to_owned));
        }
    }
    for (at, byte) in [(MODE, 3), (QUANT, 30), (QUANT, 255)] {
        let error = parse(&with(at, &[byte])).unwrap_err();
        assert_eq!(told_error(&error)["arg"], byte);
        seen.insert(error.code().to_owned());
    }
    let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
    let mut all = KvcError::CODES;
    all.sort_unstable();
    assert_eq!(seen, all);
}

/// Each fault is added to a file that has all the later ones already.
#[test]
fn the_first_fault_is_the_one_that_is_told() {
    let mut file = with(0, b"KVC");
    let mut expected = Vec::new();
    let mut spoil = |at: usize, bytes: &[u8], code: &'static str| {
        file[at..at + bytes.len()].copy_from_slice(bytes);
        expected.push(code);
        assert_eq!(parse(&file).unwrap_err().code(), code);
    };
    spoil(MODE - 5, &[0xee], "missing_tlv");
    spoil(56, &[27], "payload_length_mismatch");
    spoil(QUANT, &[99], "unknown_quant_byte");
    spoil(MODE - 5, &[2], "unknown_quant_byte");
    spoil(MODE, &[99], "unknown_fingerprint_mode");
    // The first record reaches over the end of the section.
    spoil(0x56, &[0xff], "bad_tlv");
    spoil(0x51, &[0xff, 0xff], "bad_length_prefixed_section");
    spoil(72, &[0xff, 0xff], "bad_length_prefixed_section");
    spoil(5, &[9], "unknown_save_reason");
    spoil(3, &[2], "unsupported_version");
    spoil(0, b"k", "bad_header");
    assert_eq!(expected.len(), 11);
}

#[test]
fn lengths_that_overflow_are_truncations() {
    for (offset, length) in [(u64::MAX, 28_u64), (228, u64::MAX), (u64::MAX, u64::MAX)] {
        let mut file = with(48, &offset.to_le_bytes());
        file[40..48].copy_from_slice(&length.to_le_bytes());
        file[56..64].copy_from_slice(&length.to_le_bytes());
        let error = parse(&file).unwrap_err();
        assert_eq!(error.code(), "truncated");
        let end = u128::from(offset) + u128::from(length);
        assert!(error.to_string().contains(&end.to_string()), "{error}");
    }
}

/// Known tags with a value of another length are skipped, as are unknown tags.
#[test]
fn values_of_the_wrong_length_are_none() {
    // TLV 08, which no reader uses, becomes token ids of 4 bytes and then an incomplete id.
    let ids = 0xab;
    let file = with(ids, &[9]);
    assert_eq!(parse(&file).unwrap().info.tokens.len(), 5, "the last one counts");
    // The ids become an unknown tag: TLV 08 in their place is all there is.
    let mut file = with(ids, &[9]);
    file[ids + 9] = 0x77;
    assert_eq!(parse(&file).unwrap().info.tokens.iter().collect::<Vec<_>>(), [5]);
    // Three bytes are no token; the record behind eats a byte of the next, so the walk goes wrong later.
    let mut file = with(ids, &[9, 3]);
    file[ids + 8..ids + 14].copy_from_slice(&[0x77, 16 + 4, 0, 0, 0, 0]);
    let error = parse(&file).unwrap_err();
    assert!(["missing_tlv", "bad_tlv"].contains(&error.code()), "{error}");
}

#[test]
fn errors_say_where() {
    let says = |file: &[u8]| parse(file).unwrap_err().to_string();
    assert_eq!(says(b"KV"), "the file has 2 bytes, and the header of a KVC file alone has 48");
    assert_eq!(says(&with(0, b"PK")), "the file begins with 50 4b 43; a KVC file begins with 4b 56 43 (`KVC`)");
    assert_eq!(says(&with(72, &[200])), "the prompt section at byte 72 claims 200 bytes, and 180 are left");
    assert_eq!(says(&with(QUANT, &[255])), "TLV 03 at byte 128 says quant type 255; there are 0 to 29");
    let whole = with(0, b"K");
    assert_eq!(says(&whole[..250]), "the payload ends at byte 256, and the file has 250: 6 are missing");
    assert_eq!(
        says(&[&whole[..], &[0; 3]].concat()),
        "the payload ends at byte 256, and the file has 259: 3 are too many"
    );
}
