//! Data streams: reading, sending and placing, each in pieces and each with its own delays.
//!
//! This models an agent's data path, which keeps its promise: after a fence is reported nothing is read or placed any
//! more. Until then it may be arbitrarily late.

use std::collections::HashMap;

use transload_plan::ids::{AgentId, TransferId};

use super::event::{Event, MS, S, StreamEvent};
use super::faults::Fault;
use super::memory::{GARBAGE, LAYERS, layer};
use super::state::{Flowing, Incoming, Piece, Reading};
use super::world::World;
use crate::path::Path;
use crate::stream::{StreamHeader, StreamTrailer};
use crate::{BlocksOf, Flow};

fn crc(values: &[u64]) -> u32 {
    let mix = |crc: u64, value: &u64| crc.rotate_left(7).wrapping_mul(0x9e37_79b9) ^ value;
    values.iter().fold(1, mix) as u32
}

fn half(length: u64, which: u64) -> std::ops::Range<u64> {
    if which == 0 { 0..length / 2 } else { length / 2..length }
}

impl World {
    fn blocks_of(&self, n: usize, of: BlocksOf) -> Option<u64> {
        self.nodes[n].machine.as_ref()?.blocks(of).map(|blocks| blocks.0)
    }

    pub(super) fn start_reading(&mut self, n: usize, flow: Flow) {
        let Some(blocks) = self.blocks_of(n, flow.blocks) else {
            return self.violated("blocks to be read are not there");
        };
        let mut pieces = Vec::new();
        let half = flow.bytes.div_ceil(LAYERS);
        for (from, to) in [(0, half), (half, flow.bytes)] {
            let mut at = from;
            while at < to {
                let length = self.rng.within(1, to - at);
                pieces.push(Piece { offset: at, length, begun: false, values: vec![GARBAGE; length as usize] });
                at += length;
            }
        }
        let (transfer, conn, prefilled) = (flow.transfer, flow.conn, flow.all_readable);
        let (ready, end) = (flow.ready.clone(), flow.request.end());
        let mut readable = [flow.all_readable; LAYERS as usize];
        for (layer, tokens) in ready {
            readable[layer as usize] |= tokens >= end;
        }
        let reading = Reading { flow, blocks, pieces, readable, prefilled, gathered: 0, fence_at: None };
        self.nodes[n].reading.insert(transfer, reading);
        self.may_stall(n, transfer);
        self.commit_early(n, conn, transfer);
        self.read_on(n, transfer);
    }

    pub(super) fn more_readable(&mut self, n: usize, transfer: TransferId, more: Option<(u32, u64)>) {
        let Some(reading) = self.nodes[n].reading.get_mut(&transfer) else {
            return self.violated("more to read of nothing");
        };
        match more {
            None => {
                reading.readable = [true; LAYERS as usize];
                reading.prefilled = true;
            }
            Some((layer, tokens)) => {
                let enough = tokens >= reading.flow.request.end();
                reading.readable[layer as usize] |= enough;
            }
        }
        self.read_on(n, transfer);
    }

    fn read_on(&mut self, n: usize, transfer: TransferId) {
        let life = self.nodes[n].life;
        let Some(reading) = self.nodes[n].reading.get_mut(&transfer) else {
            return;
        };
        let mut begin = Vec::new();
        let bytes = reading.flow.bytes;
        for (i, piece) in reading.pieces.iter_mut().enumerate() {
            if !piece.begun && reading.readable[layer(piece.offset, bytes)] {
                piece.begun = true;
                begin.push(i);
            }
        }
        for i in begin {
            let delay = self.rng.delay(2 * MS, 100 * MS);
            let event = StreamEvent::Gather(i, 0);
            self.after(delay, Event::Stream(n, life, transfer, event));
        }
    }

    pub(super) fn start_receiving(&mut self, n: usize, flow: Flow) {
        let Some(blocks) = self.blocks_of(n, flow.blocks) else {
            return self.violated("blocks to be written are not there");
        };
        let pair = (flow.rank, flow.peer_rank);
        let writes = self.memory.writer(blocks, pair, flow.transfer, flow.bytes);
        self.check(writes);
        let transfer = flow.transfer;
        let flowing = Flowing { flow, blocks, fence_at: None, streams: HashMap::new() };
        self.nodes[n].receiving.insert(transfer, flowing);
        self.may_stall(n, transfer);
    }

    fn may_stall(&mut self, n: usize, transfer: TransferId) {
        if self.mishap(0.01) {
            let (life, later) = (self.nodes[n].life, self.rng.below(S));
            self.after(later, Event::Stream(n, life, transfer, StreamEvent::Stall));
        }
    }

    /// Stops a transfer. What has begun may continue for a while.
    pub(super) fn fence_streams(&mut self, n: usize, transfer: TransferId) {
        let delay = match self.mishap(0.02) {
            // Memory that takes longer than it may.
            true => self.rng.within(6 * S, 12 * S),
            false => self.rng.delay(5 * MS, 200 * MS),
        };
        let (node, at) = (&mut self.nodes[n], self.now + delay);
        if let Some(reading) = node.reading.get_mut(&transfer) {
            reading.fence_at = Some(at);
        }
        if let Some(flowing) = node.receiving.get_mut(&transfer) {
            flowing.fence_at = Some(at);
        }
        let life = node.life;
        if self.fences_at_once(n, transfer) {
            self.after(0, Event::Fenced(n, life, transfer, false));
        }
        self.after(delay, Event::Fenced(n, life, transfer, true));
    }

    pub(super) fn forget_streams(&mut self, n: usize, transfer: TransferId) {
        self.nodes[n].reading.remove(&transfer);
        if let Some(flowing) = self.nodes[n].receiving.remove(&transfer) {
            let pair = (flowing.flow.rank, flowing.flow.peer_rank);
            self.memory.release(flowing.blocks, pair, transfer);
        }
    }

    pub(super) fn on_stream(&mut self, n: usize, transfer: TransferId, event: StreamEvent) {
        match event {
            StreamEvent::Gather(piece, which) => self.gather(n, transfer, piece, which),
            StreamEvent::Transmit(piece) => self.transmit(n, transfer, piece),
            StreamEvent::Arrive(agent, header, values, crc) => {
                self.arrive(n, &agent, header, values, crc);
            }
            StreamEvent::Place(stream, which, forced) => {
                self.place(n, transfer, stream, which, forced);
            }
            StreamEvent::Stall => {
                self.call(n, |machine, now| machine.device_stalled(now, transfer));
            }
            StreamEvent::Break => {
                self.call(n, |machine, now| machine.stream_failed(now, transfer, "cut"));
            }
        }
    }

    fn reading(&mut self, n: usize, transfer: TransferId) -> Option<&mut Reading> {
        let now = self.now;
        let reading = self.nodes[n].reading.get_mut(&transfer)?;
        reading.fence_at.is_none_or(|at| now <= at).then_some(reading)
    }

    fn read(&mut self, n: usize, transfer: TransferId, i: usize, part: std::ops::Range<u64>) {
        let Some(reading) = self.nodes[n].reading.get_mut(&transfer) else {
            return;
        };
        let piece = &mut reading.pieces[i];
        for at in part {
            let place = (piece.offset + at, reading.flow.bytes);
            match self.memory.read(reading.blocks, reading.flow.rank, place) {
                Ok(value) => piece.values[at as usize] = value,
                Err(what) => return self.violated(what),
            }
        }
    }

    fn gather(&mut self, n: usize, transfer: TransferId, i: usize, which: u64) {
        let Some(reading) = self.reading(n, transfer) else {
            return;
        };
        let length = reading.pieces[i].length;
        self.read(n, transfer, i, half(length, which));
        let (life, delay) = (self.nodes[n].life, self.rng.delay(2 * MS, 300 * MS));
        if which == 0 {
            let next = StreamEvent::Gather(i, 1);
            self.after(delay, Event::Stream(n, life, transfer, next));
            return;
        }
        if let Some(reading) = self.reading(n, transfer) {
            reading.gathered += 1;
        }
        let next = StreamEvent::Transmit(i);
        self.after(delay, Event::Stream(n, life, transfer, next));
        self.call(n, |machine, now| machine.stream_sent(now, transfer, length));
    }

    fn transmit(&mut self, n: usize, transfer: TransferId, i: usize) {
        let Some(reading) = self.reading(n, transfer) else {
            return;
        };
        let (conn, path) = (reading.flow.conn, reading.flow.path);
        let is_exact = reading.flow.request.codec.is_exact();
        assert!(is_exact || path.is_none_or(|path| path == Path::QUIC), "codecs go over the network");
        // It waits for its path as long as it may.
        if !path.is_some_and(|path| self.can_carry(n, conn, path)) {
            let life = self.nodes[n].life;
            let again = StreamEvent::Transmit(i);
            return self.after(10 * MS, Event::Stream(n, life, transfer, again));
        }
        let Some(reading) = self.reading(n, transfer) else {
            return;
        };
        let (piece, flow) = (&reading.pieces[i], &reading.flow);
        let header =
            StreamHeader { transfer, nonce: flow.nonce, stream: i as u32, offset: piece.offset, length: piece.length };
        let (values, conn) = (piece.values.clone(), flow.conn);
        let (life, agent) = (self.nodes[n].life, self.nodes[n].agent.clone());
        let crc = crc(&values);
        let ends = self.links[&conn].ends;
        let (to, to_life) = ends[usize::from(ends[0].0 == n)];
        if self.mishap(0.02) {
            let (here, there) = (self.rng.below(S), self.rng.below(S));
            if self.rng.chance(0.7) {
                self.after(here, Event::Stream(n, life, transfer, StreamEvent::Break));
            }
            if self.rng.chance(0.7) {
                self.after(there, Event::Stream(to, to_life, transfer, StreamEvent::Break));
            }
            return;
        }
        let arrive = StreamEvent::Arrive(agent, header, values, crc);
        let delay = self.rng.delay(3 * MS, 400 * MS);
        self.after(delay, Event::Stream(to, to_life, transfer, arrive));
    }

    fn arrive(&mut self, n: usize, agent: &AgentId, header: StreamHeader, values: Vec<u64>, sent_crc: u32) {
        let transfer = header.transfer;
        let admitted = self.call(n, |machine, now| machine.admit(now, agent, &header));
        let (admitted, fault) = (matches!(admitted, Some(Ok(()))), self.fault);
        if self.nodes[n].machine.is_none() {
            return;
        }
        let Some(flowing) = self.nodes[n].receiving.get_mut(&transfer) else {
            if admitted {
                self.violated("a stream is admitted to nothing");
            }
            return;
        };
        let forced = flowing.fence_at.is_some();
        let late = forced && fault == Some(Fault::AdmitAfterFence);
        if !admitted && !late {
            return;
        }
        if fault == Some(Fault::SucceedWithoutBytes) {
            return self.arrived(n, &header, sent_crc, sent_crc);
        }
        let incoming = Incoming { header, values, sent_crc };
        flowing.streams.insert(header.stream, incoming);
        let (life, delay) = (self.nodes[n].life, self.rng.delay(2 * MS, 300 * MS));
        let place = StreamEvent::Place(header.stream, 0, forced);
        self.after(delay, Event::Stream(n, life, transfer, place));
    }

    fn place(&mut self, n: usize, transfer: TransferId, stream: u32, which: u64, forced: bool) {
        let now = self.now;
        let Some(flowing) = self.nodes[n].receiving.get_mut(&transfer) else {
            if forced {
                self.violated("bytes are placed after the fence");
            }
            return;
        };
        if !forced && flowing.fence_at.is_some_and(|at| now > at) {
            return;
        }
        let Some(incoming) = flowing.streams.get_mut(&stream) else {
            return;
        };
        let (blocks, pair) = (flowing.blocks, (flowing.flow.rank, flowing.flow.peer_rank));
        let header = incoming.header;
        let part = half(header.length, which);
        let mut written = Vec::new();
        for at in part {
            written.push((header.offset + at, incoming.values[at as usize]));
        }
        let corrupt = !written.is_empty() && self.mishap(0.01);
        if corrupt {
            written[0].1 ^= 1;
            let at = (written[0].0 - header.offset) as usize;
            if let Some(flowing) = self.nodes[n].receiving.get_mut(&transfer)
                && let Some(incoming) = flowing.streams.get_mut(&stream)
            {
                incoming.values[at] ^= 1;
            }
        }
        for (at, value) in written {
            let wrote = self.memory.write(blocks, pair, transfer, at, value);
            self.check(wrote);
        }
        let (life, delay) = (self.nodes[n].life, self.rng.delay(2 * MS, 200 * MS));
        if which == 0 {
            let next = StreamEvent::Place(stream, 1, forced);
            self.after(delay, Event::Stream(n, life, transfer, next));
            self.call(n, |machine, now| machine.moved(now, transfer, 1));
            return;
        }
        let Some(incoming) = self.nodes[n].receiving.get_mut(&transfer).and_then(|f| f.streams.remove(&stream)) else {
            return;
        };
        let seen = match self.fault {
            Some(Fault::IgnoreChecksum) => incoming.sent_crc,
            _ => crc(&incoming.values),
        };
        self.arrived(n, &header, incoming.sent_crc, seen);
    }

    fn arrived(&mut self, n: usize, header: &StreamHeader, sent: u32, seen: u32) {
        let trailer = StreamTrailer { length: header.length, crc: sent };
        self.call(n, |machine, now| machine.stream_arrived(now, header, &trailer, seen));
    }
}
