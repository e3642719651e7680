//! The threads of a GPU. One submits pieces, asks when they are done, and never waits for one alone; the others tell of it, and
//! copy what the host has to.
//!
//! A piece is gathered in device memory and then carried to the host, or carried to the device and then scattered, on one of a few
//! streams, so that the kernel of one piece runs while another crosses the bus. The buffers that pieces go through are made
//! beforehand and bounded; where all are in use, pieces wait in the order in which they came, and hold nothing. Neighbours that wait
//! are submitted as one.
//!
//! Whether a piece is done is asked, not waited for: nothing else shall wait for a stream that stands still.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::context::Entered;
use super::error::DeviceError;
use super::gpu::{DEFAULT_MULTIPROCESSORS, Kernels};
use super::resources::{Event, Stream};
use super::staging::Piece;
use super::stream::{DeviceStream, Way};
use super::threads::{join, on_time, spawn};
use super::waiter::Pending;

/// The most bytes of one piece.
pub(crate) const PIECE: usize = 1 << 20;

/// How many pieces are under way at a time: 32 MiB of device memory, and as much pinned memory.
const PIECES: usize = 32;

/// How many streams they are submitted to.
const STREAMS: usize = 4;

/// How many bytes are submitted to a copy engine in each direction; what comes behind waits here. An engine's own small copies wait
/// behind all of it, whatever their priority: 4 MiB take 76 us of PCIe 5, and hide the 10 us until the next is submitted.
const SUBMITTED: usize = 4 << 20;

/// The most bytes that are submitted as one: while half of what may be submitted crosses the bus, the other half is gathered.
pub(super) const AT_ONCE: usize = SUBMITTED / 2;

/// How many threads tell. Each copies some 10 GB/s, and what is sent over QUIC is copied there: 2 GB/s for each lane.
const TELLERS: usize = 4;

/// How many multiprocessors work on one of them.
pub(super) const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / STREAMS as u32;

/// How often it is asked what is done, while something is under way. A wait of so long takes 35 us, of which the processor
/// works 4 to 17; without [`on_time`] it took 87.
const POLL: Duration = Duration::from_micros(20);

/// How often the driver is asked whether the device is still there, where nothing is under way and marks are pending: those who
/// wait for them sleep in the driver.
const PULSE: Duration = Duration::from_secs(1);

/// Is told what became of something, on one of the GPU's threads or at once on that of who asked, in any order.
pub(crate) type Told<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

/// What the thread that tells has to do.
type Call = Box<dyn FnOnce() + Send>;

/// The way to the threads of a GPU. Dropping it waits until they have ended: nothing is under way by then, since that holds the GPU.
#[derive(Debug)]
pub(super) struct Queue {
    pool: Pool,
    threads: Vec<JoinHandle<()>>,
}

enum Task {
    /// Somebody wants a piece.
    Want(Want),
    /// The host has filled a piece.
    Move(Move),
    Watch(Watched),
    /// Somebody has let go of a piece while others waited.
    Freed,
    End,
}

/// What a piece is wanted for.
pub(super) enum Want {
    /// To be filled by the host, and scattered.
    Fill(Told<Held>),
    /// For bytes to go through, at most [`PIECE`], on their way between a stream and the host: into the piece's own memory, or other
    /// memory of the host, which is let go of before anybody hears that they are there.
    Cross(
        Arc<DeviceStream>,
        Range<u64>,
        Way,
        Option<Box<dyn Reached>>,
        Told<Held>,
    ),
}

/// Memory of the host that bytes cross the bus to or from without being copied once more.
///
/// # Safety
/// For as long as this is there, copy engines reach so many bytes from `start` on, and nothing else in this process writes to
/// them, nor reads what is gathered there. Where one begins at the end of another, both are of one mapping that is registered as one.
pub(crate) unsafe trait Reached: Send {
    fn start(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
}

/// An event that a stream of ours has yet to come to.
struct Watched {
    event: Arc<Event>,
    /// The stream that it has yet to be recorded in.
    unrecorded: Option<Arc<Stream>>,
    told: Told<()>,
}

/// Bytes that cross the bus.
struct Move {
    piece: Piece,
    /// Where they are on the host, unless that is the piece's own memory.
    host: Option<Box<dyn Reached>>,
    stream: Arc<DeviceStream>,
    range: Range<u64>,
    way: Way,
    told: Told<Held>,
}

/// Moves that are submitted as one, since they are neighbours: in their stream, in their pieces and on the host.
struct Run {
    moves: VecDeque<Move>,
    /// Whether the place behind them in the GPU's stream is marked.
    marked: bool,
    /// The first error of submitting them. They are still waited for, since some work may have been submitted.
    failed: Option<DeviceError>,
}

/// A stream, and what was submitted to it, in order.
struct Lane {
    stream: Stream,
    moving: VecDeque<Run>,
}

/// The pieces that nobody uses.
#[derive(Debug, Default)]
struct Free {
    /// By their numbers.
    pieces: BTreeMap<usize, Piece>,
    /// Behind the one that was taken last.
    next: usize,
    /// Whether somebody has asked the worker for one, and has none yet.
    awaited: bool,
}

/// Where pieces come from and go back to. Clones are the same place.
#[derive(Clone, Debug)]
struct Pool {
    free: Arc<Mutex<Free>>,
    tasks: Sender<Task>,
}

/// A piece that nobody else uses: pinned memory, and device memory behind it. Free for others once it is dropped.
///
/// Whoever holds one must not wait for another, nor for a peer.
#[derive(Debug)]
pub(crate) struct Held {
    piece: Option<Piece>,
    pool: Pool,
}

impl Free {
    /// Takes the next neighbour of the one that was taken last if it is there, so that who takes several has neighbours.
    fn take(&mut self) -> Option<Piece> {
        let next = self.pieces.range(self.next..).next();
        let number = *next.or_else(|| self.pieces.iter().next())?.0;
        self.next = number + 1;
        self.pieces.remove(&number)
    }
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, piece: Piece) -> Held {
        Held {
            piece: Some(piece),
            pool: self.clone(),
        }
    }

    fn give_back(&self, piece: Piece) {
        let mut free = self.free();
        free.pieces.insert(piece.number(), piece);
        if free.awaited {
            hand(&self.tasks, Task::Freed);
        }
    }
}

impl Queue {
    /// Makes the buffers and the threads.
    pub(super) fn start(kernels: &Arc<Kernels>, marks: Pending) -> Result<Self, DeviceError> {
        let context = kernels.context();
        let lane = |_| {
            let (stream, moving) = (Stream::new(context)?, VecDeque::new());
            Ok(Lane { stream, moving })
        };
        let lanes: Result<Vec<_>, DeviceError> = (0..STREAMS).map(lane).collect();
        let (tasks, receiver) = mpsc::channel();
        let pool = Pool {
            free: Arc::default(),
            tasks,
        };
        for piece in Piece::several(context, PIECES, PIECE)? {
            pool.give_back(piece);
        }
        let name = format!("transload-gpu{}", context.ordinal());
        let (mut threads, mut tellers) = (Vec::new(), VecDeque::new());
        for number in 0..TELLERS {
            let (teller, calls) = mpsc::channel::<Call>();
            tellers.push_back(teller);
            threads.push(spawn(format!("{name}-host{number}"), move || {
                for call in calls {
                    // One that panics is its caller's fault, and others wait for theirs.
                    let _ = panic::catch_unwind(AssertUnwindSafe(call));
                }
            })?);
        }
        let worker = Worker {
            kernels: kernels.clone(),
            receiver,
            tellers,
            ends: false,
            pool: pool.clone(),
            lanes: lanes?,
            turn: 0,
            waiting: VecDeque::new(),
            ready: Default::default(),
            submitted: [0; 2],
            watched: Vec::new(),
            marks,
            pulse: Event::new(context)?,
            felt: Instant::now(),
        };
        threads.push(spawn(name, move || {
            on_time();
            worker.work();
        })?);
        Ok(Self { pool, threads })
    }

    /// Asks for a piece. One that is only to be filled is given at once if one is free, to whoever asks: `told` is called here.
    pub(super) fn want(&self, want: Want) {
        let mut free = self.pool.free();
        let piece = match want {
            Want::Fill(_) if !free.awaited => free.take(),
            _ => None,
        };
        drop(free);
        match (want, piece) {
            (Want::Fill(told), Some(piece)) => told(Ok(self.pool.hold(piece))),
            (want, _) => hand(&self.pool.tasks, Task::Want(want)),
        }
    }

    /// Asks to be told soon when all is done that a stream was given until now, which takes the GPU microseconds. The event is
    /// recorded behind it; where that fails it is tried again, since without it nobody knows.
    pub(super) fn watch_behind(&self, stream: &Arc<Stream>, event: Arc<Event>, told: Told<()>) {
        let recorded = event.record(stream).is_ok();
        let watched = Watched {
            event,
            unrecorded: (!recorded).then(|| stream.clone()),
            told,
        };
        hand(&self.pool.tasks, Task::Watch(watched));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        hand(&self.pool.tasks, Task::End);
        self.threads.drain(..).for_each(join);
    }
}

/// Hands a task to the thread. If that is gone, which only a panic can do, whoever waits sees its `told` dropped.
fn hand(tasks: &Sender<Task>, task: Task) {
    let _ = tasks.send(task);
}

impl Held {
    /// The pinned memory.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.piece.as_mut().map_or(&mut [], Piece::bytes)
    }

    /// Scatters the first bytes of this.
    pub(crate) fn scatter(
        mut self,
        stream: &Arc<DeviceStream>,
        range: Range<u64>,
        told: Told<Self>,
    ) {
        if let Some(piece) = self.piece.take() {
            let moving = Move {
                piece,
                host: None,
                stream: stream.clone(),
                range,
                way: Way::Scatter,
                told,
            };
            hand(&self.pool.tasks, Task::Move(moving));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.give_back(piece);
        }
    }
}

struct Worker {
    kernels: Arc<Kernels>,
    receiver: Receiver<Task>,
    /// They take turns.
    tellers: VecDeque<Sender<Call>>,
    /// Whether nobody submits any more.
    ends: bool,
    pool: Pool,
    lanes: Vec<Lane>,
    /// Which lane is next.
    turn: usize,
    /// Requests that wait for a free piece.
    waiting: VecDeque<Want>,
    /// Moves that have a piece and wait to be submitted, by [`Way`].
    ready: [VecDeque<Move>; 2],
    /// How many bytes are submitted and not done yet, by [`Way`].
    submitted: [usize; 2],
    watched: Vec<Watched>,
    marks: Pending,
    /// It is in no stream, so that nothing but the loss of the device is an error of it.
    pulse: Event,
    /// When that was asked last.
    felt: Instant,
}

impl Worker {
    fn work(mut self) {
        // Whoever waits for a piece still holds nothing of the GPU, and hears that its thread is gone.
        while !(self.ends && self.is_still()) {
            self.take_tasks();
            self.look();
            self.give_pieces();
            self.submit_ready();
            if let Err(lost) = self.kernels.context().check_lost() {
                self.lose(&lost);
            }
        }
    }

    /// Whether nothing is under way, or about to be.
    fn is_still(&self) -> bool {
        let moving = self.lanes.iter().all(|lane| lane.moving.is_empty());
        moving && self.ready.iter().all(VecDeque::is_empty) && self.watched.is_empty()
    }

    /// Waits for a task where nothing else is to be done, for a moment where something is under way; takes all that are there.
    fn take_tasks(&mut self) {
        let first = match self.is_still() {
            true => self.receiver.recv_timeout(PULSE).ok(),
            false => self.receiver.recv_timeout(POLL).ok(),
        };
        let mut next = first;
        while let Some(task) = next {
            self.take(task);
            next = self.receiver.try_recv().ok();
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Want(want) => self.waiting.push_back(want),
            Task::Move(moving) => self.ready[moving.way as usize].push_back(moving),
            Task::Watch(watched) => self.watched.push(watched),
            Task::Freed => {}
            Task::End => self.ends = true,
        }
    }

    fn give_pieces(&mut self) {
        while let Some((want, piece)) = self.next_want() {
            match want {
                Want::Fill(told) => self.tell(told, Ok(self.pool.hold(piece))),
                Want::Cross(stream, range, way, host, told) => {
                    let moving = Move {
                        piece,
                        host,
                        stream,
                        range,
                        way,
                        told,
                    };
                    self.ready[way as usize].push_back(moving);
                }
            }
        }
    }

    /// Takes the next who waits, if there is a piece for it.
    fn next_want(&mut self) -> Option<(Want, Piece)> {
        let mut free = self.pool.free();
        let piece = match self.waiting.is_empty() {
            true => None,
            false => free.take(),
        };
        let next = piece.and_then(|piece| Some((self.waiting.pop_front()?, piece)));
        free.awaited = !self.waiting.is_empty();
        next
    }

    /// Has somebody told. That is not done here: it may take a while, and what crosses the bus must not wait for it.
    fn tell<T: Send + 'static>(&mut self, told: Told<T>, outcome: Result<T, DeviceError>) {
        self.tellers.rotate_left(1);
        // The thread is gone only after a panic.
        let _ = self.tellers[0].send(Box::new(move || told(outcome)));
    }

    /// Submits what is ready, as much as may be under way in its direction.
    fn submit_ready(&mut self) {
        if self.ready.iter().all(VecDeque::is_empty) {
            return;
        }
        let kernels = self.kernels.clone();
        // For all of them. Where that fails, each call tries it itself, and says so.
        let _entered = kernels.context().enter();
        for way in [Way::Gather, Way::Scatter] {
            while let Some(mut run) = self.next_run(way) {
                self.turn = (self.turn + 1) % self.lanes.len();
                let lane = &mut self.lanes[self.turn];
                run.failed = run.submit(&kernels, &lane.stream).err();
                run.mark(&lane.stream);
                lane.moving.push_back(run);
            }
        }
    }

    /// Takes the next that are ready, with as many neighbours as are submitted at once, if so much may be under way.
    fn next_run(&mut self, way: Way) -> Option<Run> {
        let (ready, submitted) = (
            &mut self.ready[way as usize],
            &mut self.submitted[way as usize],
        );
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
        Some(Run {
            moves: ready.drain(..count).collect(),
            marked: false,
            failed: None,
        })
    }

    /// Looks at what is under way, and tells of what is done.
    fn look(&mut self) {
        let is_still = self.is_still();
        if is_still && (self.felt.elapsed() < PULSE || !self.marks.any()) {
            return;
        }
        let context = self.kernels.context().clone();
        match context.enter() {
            Ok(entered) if is_still => {
                self.felt = Instant::now();
                // The context keeps what that says of the device.
                let _ = self.pulse.is_done(&entered);
            }
            Ok(entered) => {
                self.look_at_moving(&entered);
                self.look_at_watched(&entered);
            }
            // What is watched is asked for again.
            Err(error) => {
                for run in self.lanes.iter_mut().flat_map(|lane| &mut lane.moving) {
                    run.failed.get_or_insert(error.clone());
                }
            }
        }
    }

    fn look_at_moving(&mut self, entered: &Entered<'_>) {
        for lane in 0..self.lanes.len() {
            while let Some(Run { moves, failed, .. }) = self.lanes[lane].take_done(entered) {
                for moved in moves {
                    self.submitted[moved.way as usize] -= moved.len();
                    let held = self.pool.hold(moved.piece);
                    // Whoever hears of it may use that memory again.
                    drop(moved.host);
                    let done = failed.clone().map_or(Ok(held), Err);
                    self.tell(moved.told, done);
                }
            }
        }
    }

    fn look_at_watched(&mut self, entered: &Entered<'_>) {
        let mut at = 0;
        while at < self.watched.len() {
            match self.watched[at].is_done(entered) {
                Ok(true) => {
                    let watched = self.watched.swap_remove(at);
                    self.tell(watched.told, Ok(()));
                }
                // A question that failed says nothing of what comes before the event, which may still use somebody's memory.
                // Where the device is lost, the next one finds that out.
                Ok(false) | Err(_) => at += 1,
            }
        }
    }

    /// The device is lost: nothing that was submitted runs any more, so nothing touches a piece or the memory of a stream.
    fn lose(&mut self, lost: &DeviceError) {
        for want in mem::take(&mut self.waiting) {
            let (Want::Fill(told) | Want::Cross(.., told)) = want;
            self.tell(told, Err(lost.clone()));
        }
        let runs = self
            .lanes
            .iter_mut()
            .map(|lane| mem::take(&mut lane.moving));
        let moving = runs.flatten().map(|run| run.moves);
        let ready = self.ready.iter_mut().map(mem::take);
        let left: Vec<_> = moving.chain(ready).flatten().collect();
        self.submitted = [0; 2];
        for moved in left {
            drop(moved.host);
            self.pool.give_back(moved.piece);
            self.tell(moved.told, Err(lost.clone()));
        }
        let watched = mem::take(&mut self.watched).into_iter();
        for told in watched.map(|watched| watched.told).chain(self.marks.take()) {
            self.tell(told, Err(lost.clone()));
        }
    }
}

impl Watched {
    fn is_done(&mut self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        if let Some(stream) = &self.unrecorded {
            self.event.record(stream)?;
            self.unrecorded = None;
        }
        self.event.is_done(entered)
    }
}

impl Lane {
    /// Takes the first if it is done. No other is asked for: a stream does one thing after the other, and an engine's launches wait
    /// while the driver answers.
    fn take_done(&mut self, entered: &Entered<'_>) -> Option<Run> {
        let first = self.moving.front_mut()?;
        match first.is_done(entered, &self.stream) {
            true => self.moving.pop_front(),
            false => None,
        }
    }
}

impl Move {
    fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Where its bytes are on the host.
    fn on_host(&self) -> NonNull<u8> {
        match &self.host {
            None => self.piece.host(),
            Some(host) => host.start(),
        }
    }

    /// Whether the other one goes on where this ends.
    fn goes_before(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.stream, &next.stream)
            && self.range.end == next.range.start
            && self.piece.number() + 1 == next.piece.number()
            // Memory of two kinds, or of two rings, is never neighbouring: a ring begins with what is no slot.
            && self.host.is_some() == next.host.is_some()
            && self.on_host().addr().get() + self.len() == next.on_host().addr().get()
    }

    /// Proves that its bytes fit into its piece, and are all of those on the host.
    fn check(&self) {
        let len = self.len();
        assert!(len <= PIECE, "{len} bytes in a piece of {PIECE}");
        let host = self.host.as_ref().map_or(len, |host| host.len());
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
                // SAFETY: memory of pieces, or such as `Reached` is, of neighbours; all are kept until this is done.
                unsafe { first.piece.fetch(stream, begin, host, len) }
            }
            Way::Scatter => {
                // SAFETY: as above.
                unsafe { first.piece.send(stream, begin, host, len)? };
                kernels.launch(stream, &launches, Some(MULTIPROCESSORS))
            }
        }
    }

    /// Marks the place behind it. What cannot be marked now is tried again, since without that nobody knows when it is done.
    fn mark(&mut self, stream: &Stream) {
        let Some(first) = self.moves.front() else {
            return;
        };
        match first.piece.submitted(stream) {
            Ok(()) => self.marked = true,
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
    }

    /// Whether nothing of it is under way any more.
    fn is_done(&mut self, entered: &Entered<'_>, stream: &Stream) -> bool {
        if !self.marked {
            self.mark(stream);
        }
        let first = self.moves.front().filter(|_| self.marked);
        match first.map_or(Ok(false), |first| first.piece.is_done(entered)) {
            Ok(done) => done,
            Err(error) => {
                self.failed.get_or_insert(error);
                false
            }
        }
    }
}
