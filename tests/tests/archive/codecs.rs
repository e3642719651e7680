//! Archives that store keys and values in a smaller form.

use std::sync::Arc;

use serde_json::{Value, json};
use transload_archive::{Archive, ArchiveError, Codec, Prompt, Record, SaveRequest};
use transload_layout::{Dtype, Rank};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ChunkHash, ManifestName, Put};
use transload_transfer::plan::codec::Rows;

use crate::engines::{Engine, archive};
use crate::models::{attention, mamba, side};

const TOKENS: u64 = 600;

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).collect()
}

/// Returns an engine that has computed bf16 values as models have them: bell-shaped, some channels far out. One group of tokens has
/// an infinity, and one is small.
fn computed(document: &Value) -> Engine {
    let mut alone = document.clone();
    alone["tp"] = json!(1);
    alone["pp"] = json!(1);
    let whole = Engine::new(&alone, TOKENS);
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    for memory in &whole.caches[0] {
        for number in 0..memory.allocations() {
            let len = memory.allocation(number).unwrap().1;
            let values = (0..len / 2).map(|at| match at % 4099 {
                7 => f32::INFINITY,
                11 => 40.0,
                _ => (0..6).map(|_| uniform()).sum(),
            });
            let bytes = values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes());
            let bytes: Vec<u8> = bytes.collect();
            memory.write((number as u64) << 44, &bytes).unwrap();
        }
    }
    let engine = Engine::new(document, TOKENS);
    whole.transfer_needed(&engine, 0, TOKENS);
    engine
}

fn save(store: &Arc<dyn Backend>, codec: Codec, engine: &Engine, document: &Value) -> Archive {
    let archive = archive(store, document).with_codec(codec);
    let request = SaveRequest::tokens(TOKENS).with_state(512);
    let ids = tokens();
    let (roots, _) = engine.save(&archive, &Prompt::new(&ids), &request).unwrap();
    assert_eq!(roots, 2);
    archive
}

/// Returns the roots of an archive, and then the pieces that they name.
fn contents(archive: &Archive) -> [Vec<Vec<u8>>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for name in roots(archive) {
        let manifest = archive.store().get_manifest(&name).unwrap().unwrap();
        let record = Record::read(&name, &manifest).unwrap().unwrap();
        for piece in record.pieces() {
            let piece = archive.store().get_chunk(piece).unwrap().unwrap();
            all[1].push(piece.to_vec());
        }
        all[0].push(manifest.to_vec());
    }
    all
}

/// Returns the values of a head in a layer, of one token chunk, as the archive's page has them: token by token a key and a value.
fn rows(flat: &[u8], engine: &Engine, (layer, head, chunk): (usize, usize, usize)) -> Vec<u8> {
    let (heads, row, blocks) = (4, (24 + 17) * 2, TOKENS as usize + 3);
    let token = |token: usize| {
        let block = engine.block(0, token as u64) as usize;
        let place = ((layer * blocks + block) * heads + head) * row;
        &flat[place..place + row]
    };
    (256 * chunk..256 * (chunk + 1)).flat_map(token).copied().collect()
}

/// TP 2 saves with a codec, TP 1 and TP 4 restore. The result equals encoding and decoding each head separately.
#[test]
fn a_prefix_of_tp_2_is_restored_as_its_heads_encoded_and_decoded() {
    let spec = json!({"heads": 4, "head_dim": 24, "v_head_dim": 17});
    let groups = [attention("attn", "0-2", spec)];
    let from = side(2, 1, 16, Some("NHD"), &groups);
    let flat = side(1, 1, 1, Some("LBSHC"), &groups);
    for codec in [Codec::Q8, Codec::Q4] {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let engine = computed(&from);
        let saved = save(&store, codec, &engine, &from);
        let ids = tokens();
        let found = saved.find(&Prompt::new(&ids)).unwrap();
        assert_eq!((found.tokens(), found.codec()), (512, codec));

        let (original, one) = (Engine::new(&flat, TOKENS), Engine::new(&flat, TOKENS));
        engine.transfer_needed(&original, 0, 512);
        one.restore(&saved, &found, 0).unwrap();
        let (before, after) = (original.bytes().concat(), one.bytes().concat());
        let (mut changed, mut stored_exactly) = (0, 0);
        let places = (0..3).flat_map(|layer| (0..4).flat_map(move |head| (0..2).map(move |c| (layer, head, c))));
        for place in places {
            let raw = rows(&before, &original, place);
            let of = Rows::new(Dtype::Bf16, 24, 17).unwrap();
            let (mut codes, mut exact) = (Vec::new(), Vec::new());
            codec.encode(of, &raw, &mut codes, &mut exact);
            stored_exactly += exact.len();
            let mut expected = vec![0; raw.len()];
            codec.decode(of, &codes, &mut &exact[..], &mut expected).unwrap();
            assert!(rows(&after, &one, place) == expected, "{place:?}");
            changed += usize::from(raw != expected);
        }
        assert_eq!(changed, 3 * 4 * 2);
        assert!(stored_exactly > 0, "there are infinities");

        // More ranks than it was saved with, in stages.
        let to = side(4, 2, 64, Some("HND"), &groups);
        let (many, sliced) = (Engine::new(&to, TOKENS), Engine::new(&to, TOKENS));
        many.restore(&saved, &found, 0).unwrap();
        one.transfer_needed(&sliced, 0, 512);
        assert!(many.bytes() == sliced.bytes());
    }
}

#[test]
fn pieces_do_not_depend_on_tp_and_are_as_small_as_they_should_be() {
    let groups = [attention("attn", "0-2", json!({"head_dim": 64}))];
    let stored = |tp, codec| {
        let document = side(tp, 1, 16, Some("NHD"), &groups);
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        contents(&save(&store, codec, &computed(&document), &document))
    };
    let bytes = |[_, pieces]: [Vec<Vec<u8>>; 2]| pieces.iter().map(Vec::len).sum::<usize>() as f64;
    for (codec, share) in [(Codec::Q8, 0.5625), (Codec::Q4, 0.3125)] {
        let one = stored(1, codec);
        assert!(one == stored(4, codec) && one == stored(16, codec));
        let of = bytes(one) / bytes(stored(1, Codec::Exact));
        // Some groups hold an infinity, and are stored exactly beside their codes.
        assert!((share..share + 0.03).contains(&of), "{codec}: {of}");
    }
}

#[test]
fn what_no_codec_takes_is_stored_as_it_is() {
    let opaque = json!({"name": "mla", "layers": "5", "spec": [{"kind": "mla", "latent": 36, "dtype": "bf16"}]});
    let groups = [
        attention("bytes", "0", json!({"dtype": "f8e4m3"})),
        attention("near", "1-2", json!({"sliding_window": 300})),
        mamba("3-4", "DS"),
        opaque,
    ];
    let document = side(2, 1, 16, None, &groups);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let engine = computed(&document);
    let saved = save(&store, Codec::Q4, &engine, &document);
    let ids = tokens();
    let found = saved.find(&Prompt::new(&ids)).unwrap();
    assert_eq!(found.tokens(), 512);
    let (restored, expected) = (Engine::new(&document, TOKENS), Engine::new(&document, TOKENS));
    restored.restore(&saved, &found, 0).unwrap();
    engine.transfer_needed(&expected, 0, 512);
    let same = restored.bytes().into_iter().zip(expected.bytes());
    let same: Vec<bool> = same.map(|(restored, expected)| restored == expected).collect();
    let name = |group: usize| engine.deployment.groups()[group].name();
    let exact: Vec<bool> = (0..4).map(|group| name(group) != "near").collect();
    assert_eq!(same, [exact.clone(), exact].concat());
}

/// A prefix is found with the codec that it was saved with, even if the store has others.
#[test]
fn each_codec_finds_its_own() {
    let groups = [attention("attn", "0", json!({}))];
    let document = side(1, 1, 16, None, &groups);
    let engine = computed(&document);
    let ids = tokens();
    let prompt = Prompt::new(&ids);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let all = [Codec::Q4, Codec::Exact, Codec::Q8];
    for (number, codec) in all.into_iter().enumerate() {
        for (other, codec) in all.into_iter().enumerate() {
            let found = archive(&store, &document).with_codec(codec).find(&prompt);
            let tokens = if other < number { 512 } else { 0 };
            assert_eq!(found.unwrap().tokens(), tokens, "{codec}");
        }
        save(&store, codec, &engine, &document);
    }
    // What one of them found or misses is nothing to another.
    let (exact, q4) = (archive(&store, &document), archive(&store, &document).with_codec(Codec::Q4));
    let found = q4.find(&prompt).unwrap();
    let unusable = engine.restore(&exact, &found, 0).unwrap_err();
    assert!(matches!(unusable, ArchiveError::Unusable { .. }), "{unusable}");
    let missing = q4.missing(&prompt, &SaveRequest::tokens(TOKENS)).unwrap();
    let unusable = engine.save_rank(&exact, Rank(0), &missing).unwrap_err();
    assert!(matches!(unusable, ArchiveError::Unusable { .. }), "{unusable}");
}

fn roots(archive: &Archive) -> Vec<ManifestName> {
    let ids = tokens();
    let keys = archive.keys(&Prompt::new(&ids));
    keys[1..].iter().map(|key| key.root_name()).collect()
}

/// A root of the other version, under a name where it does not belong, is not used.
#[test]
fn a_root_of_the_other_version_is_a_miss() {
    let groups = [attention("attn", "0", json!({}))];
    let document = side(1, 1, 16, None, &groups);
    let engine = computed(&document);
    let ids = tokens();
    for (own, other) in [(Codec::Exact, Codec::Q4), (Codec::Q4, Codec::Exact), (Codec::Q8, Codec::Q4)] {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let reader = archive(&store, &document).with_codec(own);
        let saved = save(&store, other, &engine, &document);
        for (from, to) in roots(&saved).iter().zip(roots(&reader)) {
            let mut manifest = store.get_manifest(from).unwrap().unwrap().to_vec();
            // It even says the right key.
            let keys = |name: &ManifestName| name.as_str().rsplit('/').next().unwrap().to_owned();
            let (old, new) = (bytes(&keys(from)), bytes(&keys(&to)));
            let at = manifest.windows(32).position(|window| window == old).unwrap();
            manifest[at..at + 32].copy_from_slice(&new);
            store.put_manifest(&to, &reseal(manifest)).unwrap();
        }
        assert_eq!(reader.find(&Prompt::new(&ids)).unwrap().tokens(), 0);
        save(&store, own, &engine, &document);
        assert_eq!(reader.find(&Prompt::new(&ids)).unwrap().tokens(), 512);
        let record = |name| Record::read(name, &store.get_manifest(name).unwrap().unwrap());
        for (name, of) in [(&roots(&reader)[0], own), (&roots(&saved)[1], other)] {
            let Some(Ok(Record::Root { codec, .. })) = record(name) else { panic!("a root") };
            assert_eq!(codec, of);
        }
    }
}

/// A chunk has the right hash but is no valid piece: the prefix ends before it.
#[test]
fn what_no_codec_has_written_is_damage() {
    let groups = [attention("attn", "0", json!({"heads": 1}))];
    let document = side(1, 1, 16, None, &groups);
    let engine = computed(&document);
    let ids = tokens();
    let prompt = Prompt::new(&ids);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let saved = save(&store, Codec::Q4, &engine, &document);
    let name = &roots(&saved)[1];
    let manifest = store.get_manifest(name).unwrap().unwrap();
    let Some(Ok(record)) = Record::read(name, &manifest) else { panic!("a root") };
    let [piece] = record.pieces().collect::<Vec<_>>()[..] else { panic!("one piece") };
    let whole = store.get_chunk(piece).unwrap().unwrap().to_vec();
    let mut longer = whole.clone();
    longer.push(0);
    let mut scale = whole.clone();
    scale[..2].copy_from_slice(&0x7c00_u16.to_le_bytes());
    let mut unmarked = whole.clone();
    unmarked[..2].copy_from_slice(&0xffff_u16.to_le_bytes());
    unmarked[64..66].fill(0);
    for wrong in [Vec::new(), whole[..100].to_vec(), whole[..whole.len() - 1].to_vec(), longer, scale, unmarked] {
        let hash = ChunkHash::from(blake3::hash(&wrong));
        assert_eq!(store.put_chunk(&hash, &wrong).unwrap(), Put::Stored);
        let mut lie = manifest.to_vec();
        let old = bytes(&piece.to_string());
        let at = lie.windows(32).position(|window| window == old).unwrap();
        lie[at..at + 32].copy_from_slice(blake3::hash(&wrong).as_bytes());
        store.put_manifest(name, &reseal(lie)).unwrap();

        let found = saved.find(&prompt).unwrap();
        assert_eq!(found.tokens(), 512);
        let error = Engine::new(&document, TOKENS).restore(&saved, &found, 0).unwrap_err();
        assert!(matches!(error, ArchiveError::Damaged { usable: 256, .. }), "{error}");
        assert_eq!(saved.find(&prompt).unwrap().tokens(), 256, "that root is gone");
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Returns a manifest with the checksum that fits.
fn reseal(mut manifest: Vec<u8>) -> Vec<u8> {
    let signed = manifest.len() - 32;
    let sum = blake3::hash(&manifest[..signed]);
    manifest[signed..].copy_from_slice(sum.as_bytes());
    manifest
}
