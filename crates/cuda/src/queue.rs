//! The threads of a GPU. One submits pieces, asks when they are done, and never waits for one alone; the others tell of it, and
//! copy what the host has to.
//!
//! A piece is gathered in device memory and then [carried](super::crossing) to the host, or carried to the device and then scattered. Where
//! all pieces are in use, whoever wants one waits, in the order in which they came, and holds nothing.
//!
//! Whether a piece is done is asked, not waited for: nothing else shall wait for a stream that stands still.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::context::Entered;
use crate::crossing::{Crossings, DmaBuffer, Move};
use crate::error::DeviceError;
use crate::gpu::Kernels;
use crate::pool::{Held, Pool};
use crate::resources::{Event, Stream};
use crate::stream::{DeviceStream, Way};
use crate::threads::{join, on_time, spawn};
use crate::waiter::Pending;

/// How many threads tell. Each copies some 10 GB/s, and what is sent over QUIC is copied there: 2 GB/s for each lane.
const TELLERS: usize = 4;

/// How often it is asked what is done, while something is under way. A wait of so long takes 35 us, of which the processor
/// works 4 to 17; without [`on_time`] it took 87.
const POLL: Duration = Duration::from_micros(20);

/// How often the driver is asked whether the device is still there, where nothing is under way and marks are pending: those who
/// wait for them sleep in the driver.
const PULSE: Duration = Duration::from_secs(1);

/// A callback that hears what became of something, on one of the GPU's threads or at once on the caller's, in any order.
pub type Told<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

/// What the thread that tells has to do.
type Call = Box<dyn FnOnce() + Send>;

/// The way to the threads of a GPU. Dropping it waits until they have ended: nothing is under way by then, since that holds the GPU.
#[derive(Debug)]
pub(crate) struct Queue {
    pool: Pool,
    tasks: Sender<Task>,
    threads: Vec<JoinHandle<()>>,
}

pub(crate) enum Task {
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
pub(crate) enum Want {
    /// To be filled by the host, and scattered.
    Fill(Told<Held>),
    /// For bytes to go through, at most [`PIECE`](super::pool::PIECE), on their way between a stream and the host: into the piece's own memory, or other
    /// memory of the host, which is let go of before anybody hears that they are there.
    Cross(Arc<DeviceStream>, Range<u64>, Way, Option<Box<dyn DmaBuffer>>, Told<Held>),
}

/// An event that a stream of ours has yet to come to.
pub(crate) struct Watched {
    event: Arc<Event>,
    /// The stream that it has yet to be recorded in.
    unrecorded: Option<Arc<Stream>>,
    told: Told<()>,
}

impl Queue {
    /// Makes the buffers and the threads.
    pub(crate) fn start(kernels: &Arc<Kernels>, marks: Pending) -> Result<Self, DeviceError> {
        let context = kernels.context();
        let (tasks, receiver) = mpsc::channel();
        let pool = Pool::new(context, tasks.clone())?;
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
            crossings: Crossings::new(context)?,
            waiting: VecDeque::new(),
            watched: Vec::new(),
            marks,
            pulse: Event::new(context)?,
            felt: Instant::now(),
        };
        threads.push(spawn(name, move || {
            on_time();
            worker.work();
        })?);
        Ok(Self { pool, tasks, threads })
    }

    /// Asks for a piece. One that is only to be filled is given at once if one is free, to whoever asks: `told` is called here.
    pub(crate) fn want(&self, want: Want) {
        let held = match want {
            Want::Fill(_) => self.pool.take(),
            Want::Cross(..) => None,
        };
        match (want, held) {
            (Want::Fill(told), Some(held)) => told(Ok(held)),
            (want, _) => hand(&self.tasks, Task::Want(want)),
        }
    }

    /// Has the first bytes of a piece scattered.
    pub(crate) fn scatter(&self, held: Held, stream: &Arc<DeviceStream>, range: Range<u64>, told: Told<Held>) {
        if let Some(piece) = held.take() {
            let moving = Move { piece, host: None, stream: stream.clone(), range, way: Way::Scatter, told };
            hand(&self.tasks, Task::Move(moving));
        }
    }

    /// Asks to be told soon when all is done that a stream was given until now, which takes the GPU microseconds. The event is
    /// recorded behind it; where that fails it is tried again, since without it nobody knows.
    pub(crate) fn watch_behind(&self, stream: &Arc<Stream>, event: Arc<Event>, told: Told<()>) {
        let recorded = event.record(stream).is_ok();
        let watched = Watched { event, unrecorded: (!recorded).then(|| stream.clone()), told };
        hand(&self.tasks, Task::Watch(watched));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        hand(&self.tasks, Task::End);
        self.threads.drain(..).for_each(join);
    }
}

/// Hands a task to the thread. If that is gone, which only a panic can do, whoever waits sees its `told` dropped.
pub(crate) fn hand(tasks: &Sender<Task>, task: Task) {
    let _ = tasks.send(task);
}

struct Worker {
    kernels: Arc<Kernels>,
    receiver: Receiver<Task>,
    /// They take turns.
    tellers: VecDeque<Sender<Call>>,
    /// Whether nobody submits any more.
    ends: bool,
    pool: Pool,
    /// Requests that wait for a free piece.
    waiting: VecDeque<Want>,
    crossings: Crossings,
    watched: Vec<Watched>,
    marks: Pending,
    /// It is in no stream, so that nothing but the loss of the device is an error of it.
    pulse: Event,
    /// When the pulse was asked for last.
    felt: Instant,
}

impl Worker {
    fn work(mut self) {
        // Whoever waits for a piece still holds nothing of the GPU, and hears that its thread is gone.
        while !(self.ends && self.is_still()) {
            self.take_tasks();
            self.look();
            self.give_pieces();
            self.crossings.submit(&self.kernels);
            if let Err(lost) = self.kernels.context().check_lost() {
                self.lose(&lost);
            }
        }
    }

    /// Whether nothing is under way, or about to be.
    fn is_still(&self) -> bool {
        self.crossings.are_done() && self.watched.is_empty()
    }

    /// Waits for a task where nothing else is to be done, for a moment where something is under way; takes all that are there.
    fn take_tasks(&mut self) {
        let wait = if self.is_still() { PULSE } else { POLL };
        let mut next = self.receiver.recv_timeout(wait).ok();
        while let Some(task) = next {
            self.take(task);
            next = self.receiver.try_recv().ok();
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Want(want) => self.waiting.push_back(want),
            Task::Move(moving) => self.crossings.push(moving),
            Task::Watch(watched) => self.watched.push(watched),
            Task::Freed => {}
            Task::End => self.ends = true,
        }
    }

    fn give_pieces(&mut self) {
        while let Some((want, piece)) = self.pool.serve(&mut self.waiting) {
            match want {
                Want::Fill(told) => self.tell(told, Ok(self.pool.hold(piece))),
                Want::Cross(stream, range, way, host, told) => {
                    self.crossings.push(Move { piece, host, stream, range, way, told });
                }
            }
        }
    }

    /// Has somebody told. That is not done here: it may take a while, and what crosses the bus must not wait for it.
    fn tell<T: Send + 'static>(&mut self, told: Told<T>, outcome: Result<T, DeviceError>) {
        self.tellers.rotate_left(1);
        // The thread is gone only after a panic.
        let _ = self.tellers[0].send(Box::new(move || told(outcome)));
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
            Err(error) => self.crossings.fail(&error),
        }
    }

    fn look_at_moving(&mut self, entered: &Entered<'_>) {
        for run in self.crossings.take_done(entered) {
            for moved in run.moves {
                let held = self.pool.hold(moved.piece);
                // Whoever hears of it may use that memory again.
                drop(moved.host);
                let done = run.failed.clone().map_or(Ok(held), Err);
                self.tell(moved.told, done);
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
        for moved in self.crossings.take_all() {
            drop(moved.host);
            drop(self.pool.hold(moved.piece));
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
