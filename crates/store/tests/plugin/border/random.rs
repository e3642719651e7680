//! Random combinations of arguments, good and bad.

use std::ptr;

use proptest::prelude::*;
use transload_store::abi::{ALREADY_THERE, INVALID, MISSING, STORED};
use transload_store::export::vtable;

use super::{C, Prefetching};

/// Returns a pointer and a length. Both are valid, or one of them is impossible.
fn range() -> impl Strategy<Value = (Option<Vec<u8>>, usize)> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..80).prop_map(|v| { let n = v.len(); (Some(v), n) }),
        1 => any::<usize>().prop_map(|n| (None, n)),
        1 => (1_usize..4).prop_map(|n| (Some(vec![7; 8]), usize::MAX / n)),
    ]
    .prop_map(|(bytes, len)| match bytes {
        // A length that its bytes do not have must be one that no memory has.
        Some(bytes) if len > bytes.len() => (Some(bytes), len | 1 << 63),
        other => (other, len),
    })
}

fn c_text() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        1 => Just(None),
        6 => prop::collection::vec(1..=u8::MAX, 0..1100).prop_map(Some),
        6 => "[a-z/.%]{0,20}".prop_map(|text| Some(text.into_bytes())),
    ]
    .prop_map(|text| {
        text.map(|mut text| {
            text.push(0);
            text
        })
    })
}

fn pointer<T>(bytes: &Option<Vec<u8>>) -> *const T {
    bytes.as_ref().map_or(ptr::null(), |bytes| bytes.as_ptr().cast())
}

proptest! {
    #[test]
    #[ignore = "the half of a test that prints thousands of lines"]
    fn other_process(
        calls in prop::collection::vec(
            (0..7, any::<bool>(), range(), range(), c_text(), any::<bool>(), any::<bool>(), any::<usize>()),
            1..40,
        ),
    ) {
        let c = C(vtable::<Prefetching>());
        let open = c.open(c"memory://border-random");
        for (call, null, hash, data, name, no_out, no_len, n) in &calls {
            let handle = if *null && n % 4 == 0 { ptr::null_mut() } else { open };
            let (hash, data) = ((pointer(&hash.0), hash.1), (pointer(&data.0), data.1));
            let name = pointer(name);
            let (mut out, mut len) = (ptr::null_mut(), 0);
            let to: *mut *mut u8 = if *no_out && n % 3 == 0 { ptr::null_mut() } else { &raw mut out };
            let to_len: *mut usize = if *no_len && n % 3 == 0 { ptr::null_mut() } else { &raw mut len };
            // SAFETY: pointers are NULL, good for their length, or come with a length that is refused.
            let code = unsafe {
                match call {
                    0 => c.put_chunk(handle, hash, data),
                    1 => c.0.get_chunk.unwrap()(handle, hash.0, hash.1, to, to_len),
                    2 => c.put_manifest(handle, name, data),
                    3 => c.0.get_manifest.unwrap()(handle, name, to, to_len),
                    4 => c.delete_manifest(handle, name),
                    5 => c.prefetch(handle, hash.0, hash.1, n | 1 << 63),
                    _ => c.prefetch(handle, hash.0, hash.1, 1),
                }
            };
            prop_assert!([STORED, ALREADY_THERE, MISSING, INVALID].contains(&code), "{code}");
            if !to.is_null() && !to_len.is_null() && (*call == 1 || *call == 3) {
                prop_assert_eq!(out.is_null(), code != 0);
            }
            // SAFETY: NULL, or a buffer of malloc that is this test's.
            unsafe { libc::free(out.cast()) };
        }
        c.close(open);
    }
}
