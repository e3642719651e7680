//! Tests in which each bit of a small store is flipped.

use super::super::disk::simulated::Random;
use super::script::{Expected, chunk, live, name, new_store, open};
use crate::backend::Backend;

/// A read returns the value that was put, or an error. Verifying finds every flipped bit.
#[test]
fn every_flipped_bit_is_an_error_and_never_data() {
    let disk = new_store();
    let store = open(&disk).unwrap();
    let mut expected = Expected::default();
    live(&store, &mut expected, &mut Random(5), 3).unwrap();
    let (hash, data) = chunk(200);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(9), hash.as_bytes()).unwrap();
    drop(store);
    let disk = disk.copy();
    let opened = open(&disk).unwrap();
    let mut flipped = 0;
    for (path, content) in disk.files() {
        for bit in 0..content.len() * 8 {
            flipped += 1;
            let flip = |file: &mut Vec<u8>| file[bit / 8] ^= 1 << (bit % 8);
            disk.tamper(&path, flip);
            let why = || format!("bit {bit} of {path}");
            // These two files hold only hints. Opening the store repairs them, and verifying finds the flipped bit.
            if ["generation", "usage"].contains(&&*path) {
                assert!(expected.check(&opened).is_err(), "nobody noticed {}", why());
                disk.tamper(&path, flip);
                continue;
            }
            match open(&disk) {
                // Only a flipped bit of the format file makes opening fail.
                Err(error) => assert!(path.starts_with("kv_store"), "{}: {error}", why()),
                Ok(store) => {
                    if let Ok(there) = store.get_chunk(&hash) {
                        assert_eq!(there.as_deref(), Some(&data[..]), "{}", why());
                    }
                    if let Ok(there) = store.get_manifest(&name(9)) {
                        assert_eq!(there.as_deref(), Some(hash.as_bytes()), "{}", why());
                    }
                    assert!(expected.check(&store).is_err(), "nobody noticed {}", why());
                }
            }
            disk.tamper(&path, flip);
        }
    }
    println!("{flipped} bits");
    expected.check(&open(&disk).unwrap()).unwrap();
}
