//! The thread that drives a GPU for transfers: it submits pieces, asks when they are done, and never waits for one alone.
//!
//! A piece is gathered in device memory and then carried to the host, or carried to the device and then scattered, on one of a few
//! streams, so that the kernel of one piece runs while another crosses the bus. The buffers that pieces go through are made
//! beforehand and bounded; where all are in use, pieces wait in the order in which they came, and hold nothing.
//!
//! Whether a piece is done is asked, not waited for: an engine's mark, say, may never come, and nothing else
//! shall wait for it.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use super::context::Entered;
use super::error::DeviceError;
use super::gpu::{DEFAULT_MULTIPROCESSORS, Kernels};
use super::resources::{Event, Stream};
use super::staging::Piece;
use super::stream::{DeviceStream, Way};

/// The most bytes of one piece.
pub(crate) const PIECE: usize = 1 << 20;

/// How many pieces are under way at a time: 32 MiB of device memory, and as much pinned memory.
const PIECES: usize = 32;

/// How many streams they are submitted to.
const STREAMS: usize = 4;

/// How many multiprocessors work on one of them.
pub(super) const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / STREAMS as u32;

/// How often it is asked what is done, while something crosses the bus.
const POLL: Duration = Duration::from_micros(20);

/// How often it is asked whether a mark was come to, where nothing else is under way.
const POLL_MARKS: Duration = Duration::from_micros(200);

/// Is told, on the thread of the GPU, what became of something.
pub(crate) type Told<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

/// The way to the thread of a GPU. The thread ends when this is dropped and all is done.
#[derive(Debug)]
pub(super) struct Queue {
    tasks: Sender<Task>,
}

enum Task {
    Acquire(Told<Held>),
    Move(Move),
    Watch(Arc<Event>, Told<()>),
    Free(Piece),
    End,
}

/// Bytes that cross the bus.
struct Move {
    piece: Piece,
    stream: Arc<DeviceStream>,
    range: Range<u64>,
    way: Way,
    told: Told<Held>,
    /// The stream that it was submitted to.
    turn: usize,
}

/// A piece that nobody else uses: pinned memory, and device memory behind it. Free for others once it is dropped.
///
/// Whoever holds one must not wait for another, nor for a peer.
#[derive(Debug)]
pub(crate) struct Held {
    piece: Option<Piece>,
    tasks: Sender<Task>,
}

impl Queue {
    /// Makes the buffers and the thread.
    pub(super) fn start(kernels: &Arc<Kernels>) -> Result<Self, DeviceError> {
        let context = kernels.context();
        let streams: Result<Vec<_>, _> = (0..STREAMS).map(|_| Stream::new(context)).collect();
        let free: Result<Vec<_>, _> = (0..PIECES).map(|_| Piece::new(context, PIECE)).collect();
        let (tasks, receiver) = mpsc::channel();
        let worker = Worker {
            kernels: kernels.clone(),
            receiver,
            tasks: tasks.clone(),
            ends: false,
            free: free?,
            streams: streams?,
            turn: 0,
            waiting: VecDeque::new(),
            moving: Vec::new(),
            watched: Vec::new(),
        };
        let name = format!("transload-gpu{}", context.ordinal());
        match thread::Builder::new()
            .name(name)
            .spawn(move || worker.work())
        {
            Ok(_) => Ok(Self { tasks }),
            Err(error) => Err(DeviceError::NoThread {
                why: error.to_string(),
            }),
        }
    }

    /// Asks for a piece.
    pub(super) fn acquire(&self, told: Told<Held>) {
        hand(&self.tasks, Task::Acquire(told));
    }

    /// Asks to be told when a stream of anybody has come to an event.
    pub(super) fn watch(&self, event: Arc<Event>, told: Told<()>) {
        hand(&self.tasks, Task::Watch(event, told));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        hand(&self.tasks, Task::End);
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

    /// Gathers bytes of a stream into the first bytes of this, at most [`PIECE`].
    pub(super) fn gather(self, stream: &Arc<DeviceStream>, range: Range<u64>, told: Told<Self>) {
        self.move_bytes(stream, range, Way::Gather, told);
    }

    /// Scatters the first bytes of this.
    pub(crate) fn scatter(self, stream: &Arc<DeviceStream>, range: Range<u64>, told: Told<Self>) {
        self.move_bytes(stream, range, Way::Scatter, told);
    }

    fn move_bytes(
        mut self,
        stream: &Arc<DeviceStream>,
        range: Range<u64>,
        way: Way,
        told: Told<Self>,
    ) {
        if let Some(piece) = self.piece.take() {
            let stream = stream.clone();
            hand(
                &self.tasks,
                Task::Move(Move {
                    piece,
                    stream,
                    range,
                    way,
                    told,
                    turn: 0,
                }),
            );
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            hand(&self.tasks, Task::Free(piece));
        }
    }
}

struct Worker {
    kernels: Arc<Kernels>,
    receiver: Receiver<Task>,
    tasks: Sender<Task>,
    /// Whether nobody submits any more.
    ends: bool,
    free: Vec<Piece>,
    streams: Vec<Stream>,
    /// Which stream is next.
    turn: usize,
    waiting: VecDeque<Told<Held>>,
    moving: Vec<Move>,
    watched: Vec<(Arc<Event>, Told<()>)>,
}

impl Worker {
    fn work(mut self) {
        while !(self.ends && self.is_idle()) {
            self.take_tasks();
            while !self.waiting.is_empty()
                && let Some(piece) = self.free.pop()
                && let Some(told) = self.waiting.pop_front()
            {
                told(Ok(self.hold(piece)));
            }
            self.tell_what_is_done();
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.moving.is_empty() && self.watched.is_empty()
    }

    /// Waits for a task where nothing else is to be done, for a moment where something is under way; takes all that are there.
    fn take_tasks(&mut self) {
        let first = match (self.moving.is_empty(), self.watched.is_empty()) {
            (false, _) => self.receiver.recv_timeout(POLL).ok(),
            (true, false) => self.receiver.recv_timeout(POLL_MARKS).ok(),
            (true, true) => self.receiver.recv().ok(),
        };
        let mut next = first;
        while let Some(task) = next {
            self.take(task);
            next = self.receiver.try_recv().ok();
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Acquire(told) => self.waiting.push_back(told),
            Task::Move(piece) => self.begin(piece),
            Task::Watch(event, told) => self.watched.push((event, told)),
            Task::Free(piece) => self.free.push(piece),
            Task::End => self.ends = true,
        }
    }

    fn hold(&self, piece: Piece) -> Held {
        Held {
            piece: Some(piece),
            tasks: self.tasks.clone(),
        }
    }

    fn begin(&mut self, mut piece: Move) {
        self.turn = (self.turn + 1) % self.streams.len();
        piece.turn = self.turn;
        match piece.submit(&self.kernels, &self.streams[self.turn]) {
            Ok(()) => self.moving.push(piece),
            Err(error) => self.fail(piece, error),
        }
    }

    /// A piece has failed. What was submitted of it may still use its buffers and its memory, so they are let go of only once its
    /// stream has done that, or the device is lost. Where neither can be told, they are never let go of.
    fn fail(&mut self, piece: Move, error: DeviceError) {
        let lost = DeviceError::is_lost;
        let idle = self.streams[piece.turn].synchronize();
        if lost(&error) || idle.as_ref().is_ok() || idle.as_ref().is_err_and(lost) {
            self.free.push(piece.piece);
            (piece.told)(Err(error));
        } else {
            mem::forget(piece);
        }
    }

    fn tell_what_is_done(&mut self) {
        if self.moving.is_empty() && self.watched.is_empty() {
            return;
        }
        match self.kernels.context().enter() {
            Ok(entered) => self.tell(&entered),
            Err(error) => {
                for piece in mem::take(&mut self.moving) {
                    self.fail(piece, error.clone());
                }
                for (_, told) in mem::take(&mut self.watched) {
                    told(Err(error.clone()));
                }
            }
        }
    }

    fn tell(&mut self, entered: &Entered) {
        let mut at = 0;
        while at < self.moving.len() {
            match self.moving[at].piece.is_done(entered) {
                Ok(false) => at += 1,
                Ok(true) => {
                    let done = self.moving.swap_remove(at);
                    (done.told)(Ok(self.hold(done.piece)));
                }
                Err(error) => {
                    let failed = self.moving.swap_remove(at);
                    self.fail(failed, error);
                }
            }
        }
        let mut at = 0;
        while at < self.watched.len() {
            match self.watched[at].0.is_done(entered) {
                Ok(false) => at += 1,
                done => {
                    let (_, told) = self.watched.swap_remove(at);
                    told(done.map(|_| ()));
                }
            }
        }
    }
}

impl Move {
    fn submit(&mut self, kernels: &Kernels, stream: &Stream) -> Result<(), DeviceError> {
        let len = (self.range.end - self.range.start) as usize;
        assert!(len <= PIECE, "{len} bytes in a piece of {PIECE}");
        let launches = self
            .stream
            .launches(self.way, self.range.clone(), self.piece.device())?;
        match self.way {
            Way::Gather => {
                kernels.launch(stream, &launches, Some(MULTIPROCESSORS))?;
                self.piece.fetch(stream, len)?;
            }
            Way::Scatter => {
                self.piece.send(stream, len)?;
                kernels.launch(stream, &launches, Some(MULTIPROCESSORS))?;
            }
        }
        self.piece.submitted(stream)
    }
}
