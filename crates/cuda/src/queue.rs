//! The threads of a GPU. One thread submits pieces and polls for their ends; it never blocks on a single one. The
//! others run callbacks, and copy bytes on the host.
//!
//! A piece is gathered in device memory and then [carried](super::crossing) to the host, or carried to the device and
//! then scattered. If all pieces are in use, requests wait in order of arrival, and hold nothing.
//!
//! Ends are polled rather than awaited, so that a stream that makes no progress delays nothing else.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::context::Entered;
use crate::crossing::{Bytes, Crossings, DmaBuffer, Move, Way};
use crate::error::DeviceError;
use crate::kernels::Kernels;
use crate::pool::{Freed, Held, Pool};
use crate::resources::{Event, Stream};
use crate::threads::{Told, join, on_time, spawn};
use crate::waiter::Pending;

/// The number of threads that run callbacks. Each copies about 10 GB/s, and these threads copy what is sent over QUIC:
/// 2 GB/s for each lane.
const TELLERS: usize = 4;

/// The polling interval while something is in flight. A wait of this length takes 35 us, of which the processor works 4
/// to 17; without [`on_time`] it took 87.
const POLL: Duration = Duration::from_micros(20);

/// The interval for checking that the device is still there while only marks are pending. The threads that wait for
/// marks sleep in the driver and would not notice.
const PULSE: Duration = Duration::from_secs(1);

type Call = Box<dyn FnOnce() + Send>;

/// A handle to the threads of a GPU. Dropping it waits until they have ended. Operations in flight hold the GPU, so
/// none is left by then.
#[derive(Debug)]
pub(crate) struct Queue {
    pool: Pool,
    tasks: Sender<Task>,
    threads: Vec<JoinHandle<()>>,
}

pub(crate) enum Task {
    Want(Want),
    /// A piece that the host has filled.
    Move(Move),
    Watch(Watched),
    /// A piece became free while requests waited.
    Freed,
    End,
}

pub(crate) enum Want {
    /// The host fills the piece, and it is scattered.
    Fill(Told<Held>),
    /// At most [`PIECE`](super::pool::PIECE) bytes cross between a stream and the host: to or from the piece's own
    /// memory, or other memory of the host, which is released before the callback runs.
    Cross(Arc<dyn Bytes>, Range<u64>, Way, Option<Box<dyn DmaBuffer>>, Told<Held>),
}

pub(crate) struct Watched {
    event: Arc<Event>,
    /// The stream in which the event must still be recorded, if that failed before.
    unrecorded: Option<Arc<Stream>>,
    told: Told<()>,
}

impl Queue {
    pub(crate) fn start(kernels: &Arc<Kernels>, marks: Pending) -> Result<Self, DeviceError> {
        let context = kernels.context();
        let (tasks, receiver) = mpsc::channel();
        let pool = Pool::new(context, Arc::new(tasks.clone()))?;
        let name = format!("transload-gpu{}", context.ordinal());
        let (mut threads, mut tellers) = (Vec::new(), VecDeque::new());
        for number in 0..TELLERS {
            let (teller, calls) = mpsc::channel::<Call>();
            tellers.push_back(teller);
            threads.push(spawn(format!("{name}-host{number}"), move || {
                for call in calls {
                    // A panic in a callback is its caller's fault, and must not lose the other callbacks.
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

    /// Requests a piece. A request to fill one is answered at once, on the caller's thread, if a piece is free.
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

    pub(crate) fn scatter(&self, held: Held, stream: Arc<dyn Bytes>, range: Range<u64>, told: Told<Held>) {
        if let Some(piece) = held.take() {
            let moving = Move { piece, host: None, stream, range, way: Way::Scatter, told };
            hand(&self.tasks, Task::Move(moving));
        }
    }

    /// Calls `told` once all work that the stream has been given is done, which must be a matter of microseconds. If the
    /// event cannot be recorded now, that is retried later, since without it the end is unknown.
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

impl Freed for Sender<Task> {
    fn freed(&self) {
        hand(self, Task::Freed);
    }
}

/// Hands a task to the worker. If the worker is gone, which only a panic can cause, the task's `told` is dropped, which
/// its owner notices.
fn hand(tasks: &Sender<Task>, task: Task) {
    let _ = tasks.send(task);
}

struct Worker {
    kernels: Arc<Kernels>,
    receiver: Receiver<Task>,
    /// The threads that run callbacks, in turn.
    tellers: VecDeque<Sender<Call>>,
    /// Whether the queue is being dropped, so that no tasks follow.
    ends: bool,
    pool: Pool,
    waiting: VecDeque<Want>,
    crossings: Crossings,
    watched: Vec<Watched>,
    marks: Pending,
    /// An event that is never recorded: querying it fails only if the device is lost.
    pulse: Event,
    /// When `pulse` was queried last.
    felt: Instant,
}

impl Worker {
    fn work(mut self) {
        // Requests that still wait for a piece hold nothing of the GPU. Their callbacks are dropped, which tells their
        // owners.
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

    fn is_still(&self) -> bool {
        self.crossings.are_done() && self.watched.is_empty()
    }

    /// Takes all tasks that have arrived. Waits for the first: shortly if something is in flight, else longer.
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

    /// Runs the callback on another thread. It may take a while, and must not delay bytes that cross the bus.
    fn tell<T: Send + 'static>(&mut self, told: Told<T>, outcome: Result<T, DeviceError>) {
        self.tellers.rotate_left(1);
        // The thread is gone only after a panic.
        let _ = self.tellers[0].send(Box::new(move || told(outcome)));
    }

    fn look(&mut self) {
        let is_still = self.is_still();
        if is_still && (self.felt.elapsed() < PULSE || !self.marks.any()) {
            return;
        }
        let context = self.kernels.context().clone();
        match context.enter() {
            Ok(entered) if is_still => {
                self.felt = Instant::now();
                // `is_done` reports a lost device to the context, so its result is not needed.
                let _ = self.pulse.is_done(&entered);
            }
            Ok(entered) => {
                self.look_at_moving(&entered);
                self.look_at_watched(&entered);
            }
            // Watched events are polled again later.
            Err(error) => self.crossings.fail(&error),
        }
    }

    fn look_at_moving(&mut self, entered: &Entered<'_>) {
        for run in self.crossings.take_done(entered) {
            for moved in run.moves {
                let held = self.pool.hold(moved.piece);
                // Released first: the callback may reuse that memory.
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
                // A failed query says nothing of the work before the event, which may still use the caller's memory. If
                // the device is lost, the next query finds that out.
                Ok(false) | Err(_) => at += 1,
            }
        }
    }

    /// Ends everything after the loss of the device. Submitted work no longer runs, so nothing touches a piece or the
    /// memory of a stream.
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
