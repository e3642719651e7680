//! A reader written from the reference page alone (docs/src/reference/archive.md). It shares no code with the archive,
//! and reads what that saved.

use std::sync::Arc;

use serde_json::{Value, json};
use transload_archive::{Prompt, SaveRequest};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ChunkHash, ManifestName};

use crate::engines::{Engine, archive};
use crate::models::side;

/// The body of a record, read field by field.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn integer(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.bytes::<1>()[0];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *bytes
    }
}

/// A segment: from, to, pieces of (class, unit, units, layer, layers, bytes).
type Segment = (u64, u64, Vec<([u64; 5], Vec<u8>)>);

/// Returns the segments of each group of a root.
fn root(store: &dyn Backend, key: [u8; 32], parent: [u8; 32], chunks: u64) -> Vec<Option<Vec<Segment>>> {
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = ManifestName::new(format!("transload.archive/2/{hex}")).unwrap();
    let manifest = store.get_manifest(&name).unwrap().unwrap();
    let (signed, sum) = manifest.split_at(manifest.len() - 32);
    assert_eq!(blake3::hash(signed).as_bytes(), sum);
    let mut body = Body(signed.strip_prefix(b"TLroot\x02\n").unwrap());
    assert_eq!((body.bytes(), body.bytes(), body.integer()), (key, parent, chunks));
    assert_eq!(body.bytes(), [1]);
    for expected in ["an engine", "1.2.3"] {
        let text: String = (0..body.integer()).map(|_| char::from(body.bytes::<1>()[0])).collect();
        assert_eq!(text, expected);
    }
    let groups = (0..body.integer()).map(|_| {
        let [there] = body.bytes();
        (there == 1).then(|| {
            let segments = (0..body.integer()).map(|_| {
                let (from, to) = (body.integer(), body.integer());
                let pieces = (0..body.integer()).map(|_| {
                    let fields = std::array::from_fn(|_| body.integer());
                    let hash: [u8; 32] = body.bytes();
                    let piece = store.get_chunk(&ChunkHash::new(&hash).unwrap()).unwrap().unwrap();
                    assert_eq!(*blake3::hash(&piece).as_bytes(), hash);
                    (fields, piece.to_vec())
                });
                (from, to, pieces.collect())
            });
            segments.collect()
        })
    });
    let groups = groups.collect();
    assert!(body.0.is_empty());
    groups
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

/// F of the two groups below.
fn cache() -> [u8; 32] {
    let mut bytes = Vec::new();
    number(&mut bytes, 256);
    number(&mut bytes, 2);
    text(&mut bytes, "attn");
    for value in [2, 1, 3, 1] {
        number(&mut bytes, value);
    }
    text(&mut bytes, "attention");
    number(&mut bytes, 6);
    for (field, value) in [("heads", 4), ("head_dim", 8), ("v_head_dim", 6)] {
        text(&mut bytes, field);
        bytes.push(1);
        number(&mut bytes, value);
    }
    text(&mut bytes, "dtype");
    bytes.push(2);
    text(&mut bytes, "bf16");
    for absent in ["sliding_window", "chunk_size"] {
        text(&mut bytes, absent);
        bytes.push(0);
    }
    text(&mut bytes, "state");
    for value in [2, 0, 2, 1] {
        number(&mut bytes, value);
    }
    text(&mut bytes, "mamba1_ssm");
    number(&mut bytes, 3);
    for (field, value) in [("d_inner", 300), ("state_size", 4)] {
        text(&mut bytes, field);
        bytes.push(1);
        number(&mut bytes, value);
    }
    text(&mut bytes, "dtype");
    bytes.push(2);
    text(&mut bytes, "f32");
    blake3::derive_key("transload archive 2 cache", &bytes)
}

#[test]
fn the_page_suffices_to_read_an_archive() {
    let groups: [Value; 2] = [
        json!({"name": "state", "layers": "0,2", "spec": [
            {"kind": "mamba1_ssm", "d_inner": 300, "state_size": 4, "dtype": "f32"}]}),
        json!({"name": "attn", "layers": "1,3", "spec": [
            {"kind": "attention", "heads": 4, "head_dim": 8, "v_head_dim": 6, "dtype": "bf16"}]}),
    ];
    let saver = side(2, 2, 16, Some("LBHSC"), &groups);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let engine = Engine::computed(&saver, 600, 9);
    let tokens: Vec<u32> = (1000..1600).collect();
    let prompt = Prompt::new(&tokens).salt("s3cret").multimodal("image", 300, 10);
    let request = SaveRequest::tokens(600).with_state(512);
    engine.save(&archive(&store, &saver), &prompt, &request).unwrap();

    // K(0), K(1), K(2).
    let mut bytes = cache().to_vec();
    text(&mut bytes, "a model");
    text(&mut bytes, "its weights");
    for engine in ["an engine", "1.2"] {
        bytes.push(1);
        text(&mut bytes, engine);
    }
    bytes.extend([0, 1]);
    text(&mut bytes, "s3cret");
    bytes.push(0);
    let mut keys = vec![blake3::derive_key("transload archive 2 prefix", &bytes)];
    for chunk in 0..2 {
        let mut bytes = keys[chunk].to_vec();
        tokens[256 * chunk..][..256].iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        number(&mut bytes, chunk as u64);
        if chunk == 1 {
            number(&mut bytes, 300);
            number(&mut bytes, 10);
            text(&mut bytes, "image");
        }
        keys.push(blake3::derive_key("transload archive 2 token chunk", &bytes));
    }
    let roots = [root(&*store, keys[1], keys[0], 1), root(&*store, keys[2], keys[1], 2)];
    assert!(roots[0][1].is_none(), "the state is that of 512 tokens");

    // The same content where this reader can look it up: one rank, [L, B, S, H, C] with blocks of 1 token.
    let flat = Engine::new(&side(1, 1, 1, Some("LBSHC"), &groups), 600);
    engine.transfer_needed(&flat, 0, 600);
    let contents = flat.bytes();
    let block = |group: usize, entry: u64| flat.block(group, entry) as usize;

    let (blocks, state_bytes) = (603, (8 + 6) * 2);
    let mut seen = 0;
    for (chunk, root) in roots.iter().enumerate() {
        let [(from, to, pieces)] = &root[0].as_ref().unwrap()[..] else { panic!("one segment") };
        assert_eq!((*from, *to), (256 * chunk as u64, 256 * (chunk as u64 + 1)));
        for ([class, unit, units, layer, layers], piece) in pieces {
            assert_eq!((*class, *units), (0, 1));
            let mut piece = piece.chunks_exact(state_bytes);
            for layer in *layer..layer + layers {
                for token in *from..*to {
                    let place = ((layer as usize * blocks + block(1, token)) * 4 + *unit as usize) * state_bytes;
                    assert_eq!(piece.next().unwrap(), &contents[1][place..place + state_bytes]);
                    seen += state_bytes;
                }
            }
            assert!(piece.next().is_none());
        }
    }
    assert_eq!(seen, 512 * 2 * 4 * state_bytes);

    let [(0, 512, pieces)] = &roots[1][1].as_ref().unwrap()[..] else { panic!("one state") };
    let mut seen = 0;
    for ([class, unit, units, layer, layers], piece) in pieces {
        assert_eq!(*class, 0);
        assert!(*units > 1, "300 channels are bundled");
        let mut piece = piece.chunks_exact(16);
        for unit in *unit..unit + units {
            for layer in *layer..layer + layers {
                let place = ((layer as usize * blocks + block(0, 0)) * 300 + unit as usize) * 16;
                assert_eq!(piece.next().unwrap(), &contents[0][place..place + 16]);
                seen += 1;
            }
        }
        assert!(piece.next().is_none());
    }
    assert_eq!(seen, 2 * 300);
}
