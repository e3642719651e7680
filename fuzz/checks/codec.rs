//! The fuzz check of encoded keys and values. The test that replays the corpus includes it, too.
//!
//! Four bytes choose codec and type, the elements of a key and of a value, and the tokens. The rest is decoded as codes
//! and exactly stored groups, and then encoded as values.

use transload_layout::Dtype;
use transload_transfer::plan::codec::{Codec, Rows};

/// Checks any bytes; panics only if a check fails.
pub(crate) fn check(data: &[u8]) {
    let Some((&[form, keys, values, tokens], body)) = data.split_first_chunk() else {
        return;
    };
    let codec = Codec::ALL[usize::from(form) % 3];
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][usize::from(form) / 3 % 3];
    let rows = Rows::new(dtype, keys.into(), values.into()).unwrap();
    let tokens = usize::from(tokens);

    let codes = codec.encoded_bytes(rows, tokens).unwrap();
    let mut to = vec![0; rows.bytes(tokens).unwrap()];
    let (codes, mut exact) = body.split_at(codes.min(body.len()));
    let _ = std::hint::black_box(codec.decode(rows, codes, &mut exact, &mut to));

    let row = rows.bytes(1).unwrap();
    let whole = body.len() - body.len().checked_rem(row).unwrap_or(body.len());
    let (mut codes, mut exact) = (Vec::new(), Vec::new());
    codec.encode(rows, &body[..whole], &mut codes, &mut exact);
    let (mut back, mut rest) = (vec![0; whole], exact.as_slice());
    codec.decode(rows, &codes, &mut rest, &mut back).unwrap();
    assert!(rest.is_empty());
    if codec.is_exact() {
        assert_eq!(back, body[..whole]);
    }
}
