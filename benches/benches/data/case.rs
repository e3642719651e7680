//! What is moved: one route of the canonical case (Llama-3-70B, 2,048 tokens), in three layouts.

use transload_layout::Deployment;
use transload_layout::document::Value;
use transload_transfer::data::RouteBytes;
use transload_transfer::memory::Memory;
use transload_transfer::plan::{BlockTable, Plan, Request, Side, Tables};

const LAYERS: usize = 80;
const HEADS: usize = 8;
/// K and V of one head and token.
const STATE: usize = 512;
const TOKENS: u32 = 2048;

/// A pair of layouts.
#[derive(Clone, Copy)]
pub(crate) struct Layouts {
    /// Of a chunk.
    pub name: &'static str,
    order: &'static str,
    /// TP and block size.
    src: (u32, u32),
    dst: (u32, u32),
}

pub(crate) const ALL: [Layouts; 3] = [
    Layouts {
        name: "512 B chunks",
        order: "LBSHC",
        src: (4, 16),
        dst: (8, 64),
    },
    Layouts {
        name: "8 KiB chunks",
        order: "LBHSC",
        src: (4, 16),
        dst: (8, 64),
    },
    Layouts {
        name: "1.25 MiB chunks",
        order: "BLSHC",
        src: (4, 16),
        dst: (4, 16),
    },
];

/// The route from the first source rank to the first destination rank, with random block tables.
pub(crate) struct Case {
    plan: Plan,
    tables: (Tables, Tables),
}

impl Case {
    pub(crate) fn new(layouts: Layouts) -> Self {
        let src = deployment(layouts.src, layouts.order);
        let dst = deployment(layouts.dst, layouts.order);
        Self {
            plan: Plan::compile(&src, &dst, &Request::tokens(TOKENS.into())).expect("a plan"),
            tables: (shuffled(layouts.src.1, 1), shuffled(layouts.dst.1, 2)),
        }
    }

    /// One side's bytes in a memory.
    pub(crate) fn bytes(&self, side: Side, memory: &Memory) -> RouteBytes {
        let tables = match side {
            Side::Source => &self.tables.0,
            Side::Destination => &self.tables.1,
        };
        let route = &self.plan.routes()[0];
        let stream = self.plan.bind_stream(route, side, tables).expect("tables");
        RouteBytes::new(stream, |_| Some(memory.into())).expect("enough memory")
    }
}

/// Bytes of the largest rank's memory.
fn memory_bytes() -> usize {
    blocks(16) as usize * 16 * LAYERS * HEADS / 4 * STATE
}

/// Memory for either side, with something in it.
pub(crate) fn memory() -> Memory {
    let memory = Memory::allocate(&[memory_bytes()]).expect("memory");
    fill(&memory);
    memory
}

fn fill(memory: &Memory) {
    let pattern: Vec<u8> = (0..1_u32 << 20)
        .map(|i| (i.wrapping_mul(0x9E37_79B9) >> 13) as u8)
        .collect();
    for at in (0..memory_bytes()).step_by(pattern.len()) {
        let len = pattern.len().min(memory_bytes() - at);
        memory.write(at as u64, &pattern[..len]).expect("in bounds");
    }
}

fn deployment((tp, block): (u32, u32), order: &str) -> Deployment {
    let text = format!(
        r#"{{"schema": "transload.deployment/1", "tp": {tp}, "block_size": {block},
            "num_blocks": {}, "order": "{order}", "group": [{{"name": "attn", "layers": "0-{}",
            "spec": [{{"kind": "attention", "heads": {HEADS}, "head_dim": 128,
            "dtype": "bf16"}}]}}]}}"#,
        blocks(block),
        LAYERS - 1,
    );
    let value: Value = serde_json::from_str(&text).expect("JSON");
    Deployment::from_value(&value).expect("a deployment")
}

/// A quarter more than are used.
fn blocks(size: u32) -> u32 {
    TOKENS / size * 5 / 4
}

fn shuffled(size: u32, seed: u64) -> Tables {
    let mut all: Vec<u32> = (0..blocks(size)).collect();
    let mut state = seed;
    for i in (1..all.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        all.swap(i, (state >> 33) as usize % (i + 1));
    }
    all.truncate((TOKENS / size) as usize);
    Tables(vec![BlockTable::List(all)])
}
