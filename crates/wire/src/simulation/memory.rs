//! Memory as version numbers, and the rules of access to it.
//!
//! A byte is a `u64` that says from which request's blocks, in which life, and on which rank it was read. Returned
//! blocks are overwritten at once, as by an engine.

use std::collections::HashMap;

use transload_plan::ids::{Rank, TransferId};

/// The value of a byte that is free, or not computed yet.
pub(super) const GARBAGE: u64 = u64::MAX;

pub(super) const LAYERS: u64 = 2;

/// The blocks of a lease or a job: a unique id, which cannot be copied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blocks(pub(super) u64);

#[derive(Debug)]
pub(super) struct Region {
    /// The node and the life that hold the blocks.
    pub(super) owner: (usize, u32),
    /// The value of their bytes once they are computed.
    pub(super) value: u64,
    pub(super) ready: [bool; LAYERS as usize],
    pub(super) given_back: bool,
    /// The rank on whose device earlier work uses the blocks until their mark has come.
    pub(super) awaited: Option<Rank>,
    /// The bytes written, by own rank and peer's rank.
    written: HashMap<(Rank, Rank), Vec<u64>>,
    /// The only attempt that may write now.
    writer: HashMap<(Rank, Rank), TransferId>,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: HashMap<u64, Region>,
    next: u64,
    next_value: u64,
}

pub(super) fn layer(offset: u64, bytes: u64) -> usize {
    usize::from(offset >= bytes.div_ceil(LAYERS))
}

impl Region {
    pub(super) fn is_computed(&self) -> bool {
        self.ready == [true; LAYERS as usize]
    }
}

impl Memory {
    pub(super) fn allocate(&mut self, owner: (usize, u32), ready: bool) -> Blocks {
        self.next += 1;
        self.next_value += 1000;
        let region = Region {
            owner,
            value: self.next_value,
            ready: [ready; LAYERS as usize],
            given_back: false,
            awaited: None,
            written: HashMap::new(),
            writer: HashMap::new(),
        };
        self.regions.insert(self.next, region);
        Blocks(self.next)
    }

    pub(super) fn region(&self, id: u64) -> &Region {
        &self.regions[&id]
    }

    pub(super) fn region_mut(&mut self, id: u64) -> &mut Region {
        self.regions.get_mut(&id).expect("allocated")
    }

    pub(super) fn give_back(&mut self, blocks: Blocks) -> Result<(), String> {
        let region = self.region_mut(blocks.0);
        if std::mem::replace(&mut region.given_back, true) {
            return Err(format!("blocks {} were given back twice", blocks.0));
        }
        Ok(())
    }

    fn peek(&self, id: u64, rank: Rank, offset: u64, bytes: u64) -> u64 {
        let region = self.region(id);
        match !region.given_back && region.ready[layer(offset, bytes)] {
            true => region.value + u64::from(rank.0),
            false => GARBAGE,
        }
    }

    /// Reads for the engine's own agent, and fails if that is not allowed now.
    pub(super) fn read(&self, id: u64, rank: Rank, at: (u64, u64)) -> Result<u64, String> {
        let region = self.region(id);
        if region.given_back {
            return Err(format!("blocks {id} are read after they were given back"));
        }
        if region.awaited.is_some() {
            return Err(format!("blocks {id} are read before their mark"));
        }
        Ok(self.peek(id, rank, at.0, at.1))
    }

    pub(super) fn writer(
        &mut self,
        id: u64,
        pair: (Rank, Rank),
        transfer: TransferId,
        bytes: u64,
    ) -> Result<(), String> {
        let region = self.region_mut(id);
        region.written.entry(pair).or_insert_with(|| vec![GARBAGE; bytes as usize]);
        match region.writer.insert(pair, transfer) {
            Some(other) => Err(format!("{other} and {transfer} write {pair:?} of {id} at a time")),
            None => Ok(()),
        }
    }

    pub(super) fn release(&mut self, id: u64, pair: (Rank, Rank), transfer: TransferId) {
        let region = self.region_mut(id);
        if region.writer.get(&pair) == Some(&transfer) {
            region.writer.remove(&pair);
        }
    }

    pub(super) fn write(
        &mut self,
        id: u64,
        pair: (Rank, Rank),
        transfer: TransferId,
        at: u64,
        value: u64,
    ) -> Result<(), String> {
        let region = self.region_mut(id);
        if region.given_back {
            return Err(format!("blocks {id} are written after they were given back"));
        }
        if region.awaited.is_some() {
            return Err(format!("blocks {id} are written before their mark"));
        }
        if region.writer.get(&pair) != Some(&transfer) {
            return Err(format!("{transfer} writes {pair:?} of {id} after its fence"));
        }
        let bytes = region.written.get_mut(&pair).expect("a writer began");
        bytes[at as usize] = value;
        Ok(())
    }

    pub(super) fn holds(&self, id: u64, pair: (Rank, Rank), bytes: u64, value: u64) -> Result<(), String> {
        let written = self.region(id).written.get(&pair);
        let written = written.ok_or(format!("nothing was written to {pair:?} of {id}"))?;
        match written.iter().position(|byte| *byte != value) {
            None if written.len() as u64 == bytes => Ok(()),
            None => Err(format!("{} bytes of {bytes} in {pair:?} of {id}", written.len())),
            Some(at) => Err(format!("byte {at} of {pair:?} of {id} is {}, not {value}", written[at] as i64)),
        }
    }

    pub(super) fn missing(&self, lives: &[Option<u32>]) -> Vec<u64> {
        let lost = self.regions.iter().filter(|(_, region)| {
            let (node, life) = region.owner;
            !region.given_back && lives[node] == Some(life)
        });
        lost.map(|(id, _)| *id).collect()
    }
}
