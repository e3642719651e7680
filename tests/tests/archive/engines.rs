//! Engines of one model that differ in layout, with the same content.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use transload_archive::{
    Archive, ArchiveError, ComputedBy, Found, Missing, Model, Part, Prompt, Restored, SaveRequest, Sharing,
};
use transload_layout::{Deployment, Rank, Side, document};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};
use transload_test_stores::forward;
use transload_tests::pair::fill;
use transload_transfer::memory::copy::{CopyOptions, copy};
use transload_transfer::{BlockTable, Memory, Plan, Request, Tables};

/// The byte that memory holds wherever nothing was placed.
const CANARY: u8 = 0xC7;

/// All ranks of a deployment, their memory, and the blocks of one request.
pub(crate) struct Engine {
    pub(crate) deployment: Deployment,
    document: Value,
    /// The memories by rank, then group.
    pub(crate) caches: Vec<Vec<Memory>>,
    pub(crate) tables: Tables,
}

impl Engine {
    /// Makes an engine full of canaries, with room for `tokens` tokens in shuffled blocks.
    pub(crate) fn new(document: &Value, tokens: u64) -> Self {
        let mut document = document.clone();
        // Room for the request and some more, so that blocks can be anywhere.
        let block = |place: &Value| place["block_size"].as_u64();
        let common = block(&document);
        let mut counts = Vec::new();
        for group in document["group"].as_array_mut().unwrap() {
            let size = block(group).or(common).unwrap();
            let needed = tokens.div_ceil(size) + 3;
            let group = group.as_object_mut().unwrap();
            group.insert("num_blocks".into(), json!(needed));
            // These went with another number of blocks.
            group.remove("layer_stride");
            group.remove("block_stride");
            group.remove("stage");
            counts.push(needed as u32);
        }
        let deployment = deployment(&document);
        let caches = deployment.ranks().map(|rank| {
            let (_, stage) = deployment.split_rank(rank);
            let groups = deployment.groups().iter();
            let caches = groups.map(|group| {
                let placement = group.placement(stage);
                let lens = vec![placement.allocation_bytes as usize; placement.allocations as usize];
                let memory = Memory::allocate(&lens).unwrap();
                for (number, len) in lens.iter().enumerate() {
                    memory.write((number as u64) << 44, &vec![CANARY; *len]).unwrap();
                }
                memory
            });
            caches.collect()
        });
        let tables = counts.iter().map(|&count| {
            let mut blocks: Vec<u32> = (0..count).collect();
            let mut state = u64::from(count) * 7 + 1;
            for i in (1..blocks.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                blocks.swap(i, (state >> 33) as usize % (i + 1));
            }
            blocks.pop();
            BlockTable::List(blocks)
        });
        Self { caches: caches.collect(), tables: Tables(tables.collect()), deployment, document }
    }

    /// Makes an engine that has computed `tokens` tokens: the same content for the same seed, however it lies, and the
    /// same in every replica.
    pub(crate) fn computed(document: &Value, tokens: u64, seed: u64) -> Self {
        let engine = Self::new(document, tokens);
        let whole = Self::whole(&engine, tokens, seed);
        whole.transfer(&engine, tokens);
        engine
    }

    /// Makes an engine of one rank that holds all tokens, even those outside windows.
    fn whole(of: &Self, tokens: u64, seed: u64) -> Self {
        let mut document = attends_to_everything(&of.document);
        let fields = document.as_object_mut().unwrap();
        fields.insert("tp".into(), json!(1));
        fields.insert("pp".into(), json!(1));
        fields.remove("dcp");
        fields.remove("pp_layers");
        for group in document["group"].as_array_mut().unwrap() {
            let group = group.as_object_mut().unwrap();
            group.remove("order");
            group.remove("allocation");
            group.remove("offset");
        }
        document.as_object_mut().unwrap().remove("order");
        // Of one size, so that a token's content does not depend on how many follow.
        let whole = Self::new(&document, tokens.max(2048));
        for (group, memory) in whole.caches[0].iter().enumerate() {
            fill(memory, seed * 1000 + group as u64);
        }
        // Blocks in order, so that content is a matter of tokens.
        let groups = whole.caches[0].len();
        Self { tables: Tables(vec![BlockTable::Identity; groups]), ..whole }
    }

    /// Transfers the first tokens directly, even those outside windows.
    fn transfer(&self, to: &Self, tokens: u64) {
        let src = deployment(&attends_to_everything(&self.document));
        let dst = deployment(&attends_to_everything(&to.document));
        self.run(&src, to, &dst, &Request::tokens(tokens));
    }

    /// Moves what a request of tokens `[start, end)` needs directly: what a restored engine has to look like.
    pub(crate) fn transfer_needed(&self, to: &Self, start: u64, end: u64) {
        let request = Request { start, ..Request::tokens(end - start) };
        self.run(&self.deployment, to, &to.deployment, &request);
    }

    fn run(&self, src: &Deployment, to: &Self, dst: &Deployment, request: &Request) {
        let plan = Plan::compile(src, dst, request).unwrap();
        let from = plan.arrange(Side::Source, &self.tables).unwrap();
        let into = plan.arrange(Side::Destination, &to.tables).unwrap();
        for route in plan.bind(&from, &into).unwrap().routes {
            let group = |side| plan.group_of(side, route.group);
            let src = &self.caches[route.src_rank.0 as usize][group(Side::Source)];
            let dst = &to.caches[route.dst_rank.0 as usize][group(Side::Destination)];
            copy(&route.program(), src, dst, &CopyOptions::default()).unwrap();
        }
    }

    /// Saves on every rank, passes the parts as bytes, and publishes. Returns the numbers of roots and of bytes written.
    pub(crate) fn save(
        &self,
        archive: &Archive,
        prompt: &Prompt<'_>,
        request: &SaveRequest,
    ) -> Result<(u64, u64), ArchiveError> {
        let missing = archive.missing(prompt, request)?;
        if missing.is_empty() {
            return Ok((0, 0));
        }
        let mut written = 0;
        let mut parts = Vec::new();
        for part in self.parts(archive, &missing)? {
            written += part.written;
            parts.push(Part::decode(&part.encode())?);
        }
        Ok((archive.publish(&missing, &parts)?.roots, written))
    }

    /// Saves on every rank, and publishes nothing.
    pub(crate) fn parts(&self, archive: &Archive, missing: &Missing) -> Result<Vec<Part>, ArchiveError> {
        self.deployment.ranks().map(|rank| self.save_rank(archive, rank, missing)).collect()
    }

    pub(crate) fn save_rank(&self, archive: &Archive, rank: Rank, missing: &Missing) -> Result<Part, ArchiveError> {
        let caches = &self.caches[rank.0 as usize];
        let rank = archive.rank(&self.deployment, rank)?;
        rank.save(missing, caches, &self.tables)
    }

    pub(crate) fn restore(&self, archive: &Archive, found: &Found, start: u64) -> Result<Vec<Restored>, ArchiveError> {
        let ranks = self.deployment.ranks().map(|rank| {
            let caches = &self.caches[rank.0 as usize];
            let rank = archive.rank(&self.deployment, rank)?;
            rank.restore(found, start, caches, &self.tables)
        });
        ranks.collect()
    }

    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        let memories = self.caches.iter().flatten();
        let bytes = memories.map(|memory| {
            (0..memory.allocations())
                .flat_map(|number| {
                    let len = memory.allocation(number).unwrap().1;
                    let mut bytes = vec![0; len];
                    memory.read((number as u64) << 44, &mut bytes).unwrap();
                    bytes
                })
                .collect()
        });
        bytes.collect()
    }

    /// Returns the block of an entry of a group's table.
    pub(crate) fn block(&self, group: usize, entry: u64) -> u32 {
        let BlockTable::List(blocks) = &self.tables.0[group] else {
            panic!("the engine's tables are lists");
        };
        blocks[entry as usize]
    }

    /// Makes two entries of a group's table name the same block.
    pub(crate) fn repeat_block(&mut self, group: usize, entry: usize, as_entry: usize) {
        let BlockTable::List(blocks) = &mut self.tables.0[group] else {
            panic!("the engine's tables are lists");
        };
        blocks[entry] = blocks[as_entry];
    }

    /// Forgets the blocks of a group before a token, as an engine does whose window has passed them.
    pub(crate) fn drop_blocks(&mut self, group: usize, before: u64) {
        let size = self.deployment.groups()[group].block_size();
        let BlockTable::List(blocks) = &mut self.tables.0[group] else {
            panic!("the engine's tables are lists");
        };
        let gone = (before / size) as usize;
        blocks[..gone].fill(BlockTable::NONE);
    }
}

/// Returns a deployment of a document that is known to be good.
pub(crate) fn deployment(document: &Value) -> Deployment {
    let value: document::Value = serde_json::from_value(document.clone()).unwrap();
    Deployment::from_value(&value).unwrap_or_else(|faults| panic!("{faults}\n{document:#}"))
}

/// Returns whether specs of one page need different tokens.
fn windows_differ(document: &Value) -> bool {
    let window = |spec: &Value| (spec["sliding_window"].as_u64(), spec["chunk_size"].as_u64());
    let mut groups = document["group"].as_array().unwrap().iter();
    groups.any(|group| {
        let specs = group["spec"].as_array().unwrap();
        specs.iter().any(|spec| window(spec) != window(&specs[0]))
    })
}

fn attends_to_everything(document: &Value) -> Value {
    let mut document = document.clone();
    for group in document["group"].as_array_mut().unwrap() {
        for spec in group["spec"].as_array_mut().unwrap() {
            let spec = spec.as_object_mut().unwrap();
            spec.remove("sliding_window");
            spec.remove("chunk_size");
        }
    }
    document
}

/// Returns an archive of the model that a document describes.
pub(crate) fn archive(store: &Arc<dyn Backend>, document: &Value) -> Archive {
    let model =
        Model::new("a model", "its weights").with_engine(ComputedBy::new("an engine", "1.2.3"), Sharing::Version);
    Archive::new(store.clone(), model, &deployment(document)).unwrap()
}

/// Saves `tokens` tokens from one deployment, restores them into another, and checks every byte, including those that
/// must not change. Returns the number of restored tokens.
pub(crate) fn carry(store: &Arc<dyn Backend>, (from, to): (&Value, &Value), tokens: u64, start: u64) -> u64 {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let prompt = Prompt::new(&ids);
    let source = Engine::computed(from, tokens, 5);
    let end = tokens / 256 * 256;
    let request = SaveRequest::tokens(tokens).with_state(end);
    source.save(&archive(store, from), &prompt, &request).unwrap();

    let reader = archive(store, to);
    let found = reader.find(&prompt).unwrap();
    let start = start.min(found.tokens());
    let (restored, expected) = (Engine::new(to, tokens), Engine::new(to, tokens));
    restored.restore(&reader, &found, start).unwrap();
    if found.tokens() > start {
        source.transfer_needed(&expected, start, found.tokens());
    }
    let same = if windows_differ(from) {
        // What one spec of a page needs is restored of all: no byte is wrong, some nobody asked for.
        let whole = Engine::new(to, tokens);
        source.transfer(&whole, found.tokens());
        let bytes = |engine: &Engine| engine.bytes().concat();
        let (restored, expected, whole) = (bytes(&restored), bytes(&expected), bytes(&whole));
        let right = |i: usize| restored[i] == expected[i] || restored[i] == whole[i];
        (0..restored.len()).all(right)
    } else {
        restored.bytes() == expected.bytes()
    };
    assert!(same, "{from:#}\n{to:#}\n{tokens} tokens from {start}");

    // The same engine saves again: nothing is missing, and nothing written.
    let again = source.save(&archive(store, from), &prompt, &request).unwrap();
    assert_eq!(again, (0, 0));
    found.tokens()
}

/// A store that counts the chunks it stores, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    store: MemoryStore,
    stored: Mutex<(u64, u64)>,
    manifests: Mutex<BTreeSet<String>>,
}

impl Tally {
    pub(crate) fn stored(&self) -> (u64, u64) {
        *self.stored.lock().unwrap()
    }

    /// Returns the names of all manifests.
    pub(crate) fn manifests(&self) -> BTreeSet<String> {
        self.manifests.lock().unwrap().clone()
    }
}

impl Backend for Tally {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let put = self.store.put_chunk(hash, data)?;
        if put == Put::Stored {
            let mut stored = self.stored.lock().unwrap();
            *stored = (stored.0 + 1, stored.1 + data.len() as u64);
        }
        Ok(put)
    }
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.manifests.lock().unwrap().insert(name.to_string());
        self.store.put_manifest(name, data)
    }
    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.manifests.lock().unwrap().remove(name.as_str());
        self.store.delete_manifest(name)
    }

    forward!(store: get_chunk, get_manifest);
}
