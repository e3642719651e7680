//! Random steps, compared with a map.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use transload_archive::objects::{Objects, PIECE, Part, PartMut, Source, Target};
use transload_store::backend::CollectOptions;
use transload_store::{Backend, Put};

pub(crate) fn steps(usual: u64) -> u64 {
    let text = std::env::var("TRANSLOAD_TEST_STEPS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn length(&mut self) -> usize {
        match self.below(200) {
            0 => PIECE + self.below(3) as usize - 1,
            1..40 => 0,
            n => n as usize % 7 * 100 + 1,
        }
    }

    fn cuts<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        for _ in 0..self.below(4) {
            let (part, rest) = bytes.split_at(self.below(bytes.len() as u64 + 1) as usize);
            parts.push(part.into());
            bytes = rest;
        }
        parts.push(bytes.into());
        parts
    }
}

/// Returns bytes that depend only on the seed, so objects share them.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let key = blake3::hash(&seed.to_le_bytes());
    let mut stream = blake3::Hasher::new_keyed(key.as_bytes()).finalize_xof();
    stream.fill(&mut bytes);
    bytes
}

pub(crate) fn put(objects: &Objects, key: &[u8], meta: &[u8], bytes: &[u8]) -> Put {
    let parts = [bytes.into()];
    let source = Source { key, meta, parts: &parts };
    objects.put(&[source]).unwrap()[0]
}

pub(crate) fn get(objects: &Objects, key: &[u8], len: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut bytes = vec![0x5a; len];
    let mut parts = [(&mut bytes).into()];
    let target = Target { key, parts: &mut parts };
    let read = objects.get(&mut [target]).unwrap().pop().unwrap()?;
    assert_eq!(read.bytes, len as u64);
    Some((read.meta, bytes))
}

type Model = BTreeMap<(Vec<u8>, Vec<u8>), (Vec<u8>, Vec<u8>)>;

const NAMESPACES: [&[u8]; 3] = [b"model", b"\0", b"mode"];

/// Returns one of a few keys with unusual bytes, so that steps often use the same key.
fn key(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => b"..".to_vec(),
        1 => vec![0],
        2 => b"/".to_vec(),
        3 => vec![0xff; 4096],
        4 => b"lkey".to_vec(),
        5 => b"model@00000001@0@ff-SEP-x".to_vec(),
        n => n.to_le_bytes().to_vec(),
    }
}

/// Puts, looks up, reads, removes, lists and collects at random. `open` always opens the same store.
pub(crate) fn live(open: &dyn Fn() -> Arc<dyn Backend>, steps: u64, seed: u64) {
    let mut random = Random(seed);
    let mut model = Model::new();
    let mut store = open();
    for step in 0..steps {
        let namespace = NAMESPACES[random.below(3) as usize];
        let objects = Objects::new(store.clone(), namespace).unwrap();
        let objects = objects.with_threads(1 + random.below(3) as usize);
        let count = random.below(6);
        let keys: Vec<Vec<u8>> = (0..count).map(|_| key(&mut random)).collect();
        let of = |key: &[u8]| (namespace.to_vec(), key.to_vec());
        match random.below(20) {
            0..8 => put_some(&objects, &mut model, namespace, &keys, &mut random),
            8..14 => get_some(&objects, &model, namespace, &keys, &mut random),
            14..17 => {
                let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                let found = objects.has(&asked).unwrap();
                let found = found.into_iter().map(|info| Some((info.as_ref()?.bytes, info?.meta)));
                let expected = keys.iter().map(|key| {
                    let (meta, bytes) = model.get(&of(key))?;
                    Some((bytes.len() as u64, meta.clone()))
                });
                assert!(found.eq(expected), "step {step}");
            }
            17 => {
                let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                objects.delete(&asked).unwrap();
                keys.iter().for_each(|key| drop(model.remove(&of(key))));
            }
            18 => {
                let Some(inventory) = store.inventory() else {
                    continue;
                };
                let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
                inventory.collect(&now, &mut |_| ()).unwrap();
                let mut listed: Vec<_> = objects.list().unwrap();
                listed.sort_by(|a, b| a.key.cmp(&b.key));
                let listed = listed.into_iter();
                let listed = listed.map(|one| (one.key, one.info.bytes, one.info.meta));
                let own = model.iter().filter(|((of, _), _)| of == namespace);
                let own = own.map(|((_, key), (meta, bytes))| (key.clone(), bytes.len() as u64, meta.clone()));
                assert!(listed.eq(own), "step {step}");
            }
            _ => {
                drop(objects);
                drop(store);
                store = open();
            }
        }
    }
    // To the last byte.
    for ((namespace, key), (meta, bytes)) in &model {
        let objects = Objects::new(store.clone(), namespace).unwrap();
        let read = get(&objects, key, bytes.len());
        assert!(read.as_ref() == Some(&(meta.clone(), bytes.clone())));
    }
}

fn put_some(objects: &Objects, model: &mut Model, namespace: &[u8], keys: &[Vec<u8>], random: &mut Random) {
    let values: Vec<(Vec<u8>, Vec<u8>)> = keys
        .iter()
        .map(|_| {
            let meta = content(random.below(2), random.below(3) as usize);
            (meta, content(random.below(4), random.length()))
        })
        .collect();
    let parts: Vec<Vec<Part<'_>>> = values.iter().map(|(_, bytes)| random.cuts(bytes)).collect();
    let sources: Vec<Source<'_>> =
        (0..keys.len()).map(|n| Source { key: &keys[n], meta: &values[n].0, parts: &parts[n] }).collect();
    let put = objects.put(&sources).unwrap();
    // The last one of a key counts.
    let last: BTreeMap<&[u8], usize> = (0..).zip(keys).map(|(n, key)| (&key[..], n)).collect();
    for (n, key) in keys.iter().enumerate() {
        let name = (namespace.to_vec(), key.clone());
        let (meta, bytes) = &values[last[&key[..]]];
        let same = |(old, there): &(Vec<u8>, Vec<u8>)| old == meta && there.len() == bytes.len();
        let stays = model.get(&name).is_some_and(same);
        // The first of a key that is there twice changes what the map has.
        if last[&key[..]] == n || !stays {
            let expected = if stays { Put::AlreadyThere } else { Put::Stored };
            assert_eq!(put[n], expected);
        }
    }
    for (key, n) in last {
        let name = (namespace.to_vec(), key.to_vec());
        if put[n] == Put::Stored {
            model.insert(name, values[n].clone());
        }
    }
}

fn get_some(objects: &Objects, model: &Model, namespace: &[u8], keys: &[Vec<u8>], random: &mut Random) {
    let expected: Vec<_> = keys.iter().map(|key| model.get(&(namespace.to_vec(), key.clone()))).collect();
    let mut memory: Vec<Vec<u8>> = expected
        .iter()
        .map(|there| {
            let len = there.map_or(7, |(_, bytes)| bytes.len());
            // Sometimes too short or too long.
            match random.below(10) {
                0 => vec![0; len + 1],
                1 => vec![0; len.saturating_sub(1)],
                _ => vec![0; len],
            }
        })
        .collect();
    let mut parts: Vec<Vec<PartMut<'_>>> = Vec::new();
    for mut rest in memory.iter_mut().map(|bytes| &mut bytes[..]) {
        let mut cut = Vec::new();
        for _ in 0..random.below(4) {
            let (part, after) = rest.split_at_mut(random.below(rest.len() as u64 + 1) as usize);
            cut.push(part.into());
            rest = after;
        }
        cut.push(rest.into());
        parts.push(cut);
    }
    let mut targets: Vec<Target<'_, '_>> =
        keys.iter().zip(&mut parts).map(|(key, parts)| Target { key, parts }).collect();
    let read = objects.get(&mut targets).unwrap();
    assert_eq!(read.len(), keys.len());
    for ((read, expected), memory) in read.iter().zip(&expected).zip(&memory) {
        match expected {
            Some((meta, bytes)) if bytes.len() == memory.len() => {
                let read = read.as_ref().unwrap();
                assert_eq!((read.bytes, &read.meta), (bytes.len() as u64, meta));
                assert!(memory == bytes);
            }
            _ => assert_eq!(*read, None),
        }
    }
}
