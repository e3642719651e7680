//! Bytes that cross the bus. Neighbouring pieces are submitted together, to a few streams in turn, so that the kernel
//! of one run works while other runs cross. Beyond a bound, pieces wait before they are submitted.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::{Context, Entered};
use crate::error::DeviceError;
use crate::kernels::Kernels;
use crate::launch::DEFAULT_MULTIPROCESSORS;
use crate::launch::Launch;
use crate::piece::Piece;
use crate::pool::{Held, PIECE};
use crate::resources::Stream;
use crate::threads::Told;

const STREAMS: usize = 4;

pub(crate) const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / STREAMS as u32;

/// The most bytes that are submitted to a copy engine in each direction. Later ones wait here, because the engine's own
/// small copies queue behind all submitted bytes, whatever their priority. 4 MiB take 76 us on PCIe 5, and hide the 10
/// us until the next submission.
const SUBMITTED: usize = 4 << 20;

/// The most bytes that are submitted together: half of them are gathered while the other half crosses the bus.
pub(crate) const AT_ONCE: usize = SUBMITTED / 2;

pub(crate) struct Crossings {
    lanes: Vec<Lane>,
    /// Index of the lane that takes the next run.
    turn: usize,
    /// Moves that wait to be submitted, by [`Way`].
    ready: [VecDeque<Move>; 2],
    /// Bytes that are submitted and not done yet, by [`Way`].
    submitted: [usize; 2],
}

/// A stream, and the runs that were submitted to it, oldest first.
struct Lane {
    stream: Stream,
    moving: VecDeque<Run>,
}

/// Moves that are submitted together because they are neighbours: in their stream, in their pieces and on the host.
pub(crate) struct Run {
    pub(crate) moves: VecDeque<Move>,
    /// Whether the event behind the run is recorded in the lane's stream.
    recorded: bool,
    /// The first error of submitting the run. The run is still waited for, since part of it may have been submitted.
    pub(crate) failed: Option<DeviceError>,
}

pub(crate) struct Move {
    pub(crate) piece: Piece,
    /// The bytes' location on the host, unless that is the piece's own memory.
    pub(crate) host: Option<Box<dyn DmaBuffer>>,
    pub(crate) stream: Arc<dyn Bytes>,
    pub(crate) range: Range<u64>,
    pub(crate) way: Way,
    pub(crate) told: Told<Held>,
}

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Gathers from the memory into a buffer.
    Gather,
    /// Scatters from a buffer into the memory.
    Scatter,
}

/// Device memory as a stream of bytes, which crosses the bus in pieces.
pub(crate) trait Bytes: Send + Sync {
    /// Returns the launches that move a range of the stream between the memory and a buffer of just that range at this
    /// address.
    fn launches(&self, way: Way, range: Range<u64>, buffer: u64) -> Result<Vec<Launch>, DeviceError>;
}

/// Memory of the host that copy engines access directly, which saves a copy.
///
/// # Safety
/// While this value exists, copy engines can access [`bytes`](Self::bytes) bytes from [`start`](Self::start) on. No
/// other code of this process writes to these bytes, or reads them while a copy into them is under way. If one buffer
/// begins where another ends, both lie in one mapping, registered as one.
pub unsafe trait DmaBuffer: Send {
    /// Returns the address of the first byte.
    fn start(&self) -> NonNull<u8>;
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;
}

impl Crossings {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let lane = |_| {
            let (stream, moving) = (Stream::new(context)?, VecDeque::new());
            Ok(Lane { stream, moving })
        };
        let lanes: Result<_, DeviceError> = (0..STREAMS).map(lane).collect();
        Ok(Self { lanes: lanes?, turn: 0, ready: Default::default(), submitted: [0; 2] })
    }

    pub(crate) fn are_done(&self) -> bool {
        let moving = self.lanes.iter().all(|lane| lane.moving.is_empty());
        moving && self.ready.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn push(&mut self, moving: Move) {
        self.ready[moving.way as usize].push_back(moving);
    }

    pub(crate) fn submit(&mut self, kernels: &Kernels) {
        if self.ready.iter().all(VecDeque::is_empty) {
            return;
        }
        // Entered once for all. If that fails, each call below enters on its own and reports the error.
        let _entered = kernels.context().enter();
        for way in [Way::Gather, Way::Scatter] {
            while let Some(mut run) = self.next_run(way) {
                self.turn = (self.turn + 1) % self.lanes.len();
                let lane = &mut self.lanes[self.turn];
                run.failed = run.submit(kernels, &lane.stream).err();
                run.record(&lane.stream);
                lane.moving.push_back(run);
            }
        }
    }

    /// Takes the next ready move with as many of its neighbours as go together, if the bound allows them.
    fn next_run(&mut self, way: Way) -> Option<Run> {
        let (ready, submitted) = (&mut self.ready[way as usize], &mut self.submitted[way as usize]);
        let (mut count, mut len) = (1, ready.front()?.len());
        while let (Some(last), Some(next)) = (ready.get(count - 1), ready.get(count))
            && last.goes_before(next)
            && len + next.len() <= AT_ONCE
        {
            (count, len) = (count + 1, len + next.len());
        }
        if *submitted + len > SUBMITTED {
            return None;
        }
        *submitted += len;
        Some(Run { moves: ready.drain(..count).collect(), recorded: false, failed: None })
    }

    /// Takes the runs that are done. Only the first run of each stream is queried: streams work in order, and an
    /// engine's launches wait while the driver answers.
    pub(crate) fn take_done(&mut self, entered: &Entered<'_>) -> Vec<Run> {
        let mut done = Vec::new();
        for Lane { stream, moving } in &mut self.lanes {
            while let Some(first) = moving.front_mut()
                && first.is_done(entered, stream)
                && let Some(run) = moving.pop_front()
            {
                for moved in &run.moves {
                    self.submitted[moved.way as usize] -= moved.len();
                }
                done.push(run);
            }
        }
        done
    }

    /// Marks all submitted runs as failed with `error`. They are still waited for: the driver does not say which of
    /// them are done.
    pub(crate) fn fail(&mut self, error: &DeviceError) {
        for run in self.lanes.iter_mut().flat_map(|lane| &mut lane.moving) {
            run.failed.get_or_insert_with(|| error.clone());
        }
    }

    /// Takes all moves. Allowed only when the device is lost and so touches none of their memory any more.
    pub(crate) fn take_all(&mut self) -> Vec<Move> {
        self.submitted = [0; 2];
        let lanes = self.lanes.iter_mut();
        let runs = lanes.flat_map(|lane| mem::take(&mut lane.moving));
        let moving = runs.flat_map(|run| run.moves);
        moving.chain(self.ready.iter_mut().flat_map(mem::take)).collect()
    }
}

impl Move {
    fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    fn on_host(&self) -> NonNull<u8> {
        match &self.host {
            None => self.piece.host(),
            Some(host) => host.start(),
        }
    }

    /// Returns whether `next` continues this move on every side.
    fn goes_before(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.stream, &next.stream)
            && self.range.end == next.range.start
            && self.piece.number() + 1 == next.piece.number()
            // Memory of two kinds, or of two rings, is never adjacent: each ring begins with a header.
            && self.host.is_some() == next.host.is_some()
            && self.on_host().addr().get() + self.len() == next.on_host().addr().get()
    }

    /// Panics unless the bytes fit into the piece and fill the memory of the host.
    fn check(&self) {
        let len = self.len();
        assert!(len <= PIECE, "{len} bytes in a piece of {PIECE}");
        let host = self.host.as_ref().map_or(len, |host| host.bytes());
        assert_eq!(host, len, "bytes of the host");
    }
}

impl Run {
    fn submit(&mut self, kernels: &Kernels, stream: &Stream) -> Result<(), DeviceError> {
        self.moves.iter().for_each(Move::check);
        let len = self.moves.iter().map(Move::len).sum();
        let Some(first) = self.moves.front_mut() else {
            return Ok(());
        };
        let (begin, host) = (first.range.start, first.on_host());
        let range = begin..begin + len as u64;
        let buffer = first.piece.device_at(begin);
        let launches = first.stream.launches(first.way, range, buffer)?;
        match first.way {
            Way::Gather => {
                kernels.launch(stream, &launches, Some(MULTIPROCESSORS))?;
                // SAFETY: memory of pieces, or such as `DmaBuffer` is, of neighbours; all are kept until this is done.
                unsafe { first.piece.fetch(stream, begin, host, len) }
            }
            Way::Scatter => {
                // SAFETY: as above.
                unsafe { first.piece.send(stream, begin, host, len)? };
                kernels.launch(stream, &launches, Some(MULTIPROCESSORS))
            }
        }
    }

    /// Records the event behind the run. A failure is retried later, since without the event the end of the run cannot
    /// be known.
    fn record(&mut self, stream: &Stream) {
        let Some(first) = self.moves.front() else {
            return;
        };
        match first.piece.submitted(stream) {
            Ok(()) => self.recorded = true,
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
    }

    fn is_done(&mut self, entered: &Entered<'_>, stream: &Stream) -> bool {
        if !self.recorded {
            self.record(stream);
        }
        let first = self.moves.front().filter(|_| self.recorded);
        match first.map_or(Ok(false), |first| first.piece.is_done(entered)) {
            Ok(done) => done,
            Err(error) => {
                self.failed.get_or_insert(error);
                false
            }
        }
    }
}
