//! The state of the driver except memory: contexts, streams with their queues, events, modules. One lock guards it and
//! one condition signals every change, so that all waiting can be understood in one place.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::time::Instant;

use crate::code::*;
use crate::settings::{Random, settings};

/// A number that identifies an object of the driver. No number is reused in a process.
pub(crate) type Handle = usize;

pub(crate) struct Board {
    /// Whether all streams stop before their next operation.
    pub(crate) held: bool,
    pub(crate) contexts: Vec<Context>,
    pub(crate) lines: HashMap<Handle, Line>,
    pub(crate) events: HashMap<Handle, Event>,
    /// The device of each module.
    pub(crate) modules: HashMap<Handle, usize>,
    pub(crate) functions: HashMap<Handle, Function>,
    last_handle: Handle,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) retained: u32,
    /// The sticky error, if the context is lost.
    pub(crate) lost: Option<Code>,
    pub(crate) held: bool,
    /// The context's NULL stream, once it has been used.
    pub(crate) null: Option<Handle>,
    pub(crate) peers: HashSet<usize>,
    /// The number of streams created in the context so far.
    pub(crate) streams: usize,
    /// The streams of the operations that have not begun, for each hardware queue in order of submission.
    pub(crate) queues: HashMap<usize, VecDeque<Handle>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Blocking,
    NonBlocking,
}

/// A stream: the operations of its thread. It outlives the stream's handle until they are done.
pub(crate) struct Line {
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// The hardware queue that the stream shares with others.
    pub(crate) shared: Option<usize>,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    pub(crate) held: bool,
    /// The stream claims to be captured into a graph. Its operations are executed nevertheless.
    pub(crate) capturing: bool,
    /// The stream's handle is valid.
    pub(crate) open: bool,
}

/// The action of an operation. An error loses the context.
pub(crate) type Work = Box<dyn FnOnce(&mut Random) -> Result + Send>;

pub(crate) struct Operation {
    pub(crate) after: Vec<Mark>,
    pub(crate) work: Work,
}

/// A point in a stream's work: the end of its operation number `number`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) line: Handle,
    pub(crate) number: u64,
}

pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) timing: bool,
    /// The mark of its last record.
    pub(crate) mark: Option<Mark>,
    /// The time at which the stream reached that mark.
    pub(crate) at: Option<Instant>,
}

#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) module: Handle,
    pub(crate) entry: crate::kernel::Entry,
}

static BOARD: LazyLock<Mutex<Board>> = LazyLock::new(|| {
    Mutex::new(Board {
        held: false,
        contexts: (0..settings().devices).map(|_| Context::default()).collect(),
        lines: HashMap::new(),
        events: HashMap::new(),
        modules: HashMap::new(),
        functions: HashMap::new(),
        last_handle: 0x1000_0000,
    })
});

pub(crate) static NEWS: Condvar = Condvar::new();

/// Locks the board. A thread that holds this lock must not take that of memory.
pub(crate) fn board() -> MutexGuard<'static, Board> {
    BOARD.lock().unwrap()
}

impl Board {
    pub(crate) fn handle(&mut self) -> Handle {
        self.last_handle += 16;
        self.last_handle
    }

    pub(crate) fn reached(&self, mark: &Mark) -> bool {
        let line = self.lines.get(&mark.line);
        line.is_none_or(|line| line.done >= mark.number)
    }

    /// Returns whether a stream's thread may execute its next operation. In a lost context operations are discarded, so
    /// they need not wait.
    pub(crate) fn may_start(&self, handle: Handle) -> bool {
        let line = &self.lines[&handle];
        let next = &line.queue[0];
        let context = &self.contexts[line.device];
        let held = self.held || context.held || line.held;
        context.lost.is_some() || (!held && self.is_first(handle) && next.after.iter().all(|mark| self.reached(mark)))
    }

    /// Returns whether a stream's next operation is at the head of its hardware queue. A running operation has left the
    /// queue, so it delays only operations that wait for it.
    fn is_first(&self, handle: Handle) -> bool {
        let line = &self.lines[&handle];
        let first = |queue| self.contexts[line.device].queues[&queue].front();
        line.shared.is_none_or(|queue| first(queue) == Some(&handle))
    }

    /// Removes a stream's next operation from all queues and returns it.
    pub(crate) fn take(&mut self, handle: Handle) -> Operation {
        let line = self.lines.get_mut(&handle).expect("its thread removes it");
        if let Some(queue) = line.shared {
            let queue = self.contexts[line.device].queues.entry(queue).or_default();
            // In a lost context it may not be the first.
            let at = queue.iter().position(|other| *other == handle);
            at.and_then(|at| queue.remove(at));
        }
        line.queue.pop_front().expect("it may start")
    }

    /// Returns the current ends of those streams of a device that `which` accepts.
    pub(crate) fn marks(&self, device: usize, which: impl Fn(Handle, &Line) -> bool) -> Vec<Mark> {
        let lines = self.lines.iter();
        lines
            .filter(|(handle, line)| line.device == device && which(**handle, line))
            .map(|(&line, state)| Mark { line, number: state.submitted })
            .collect()
    }

    /// Fails with the sticky error of a lost context, or if the context has been destroyed.
    pub(crate) fn usable(&self, device: usize) -> Result {
        let context = &self.contexts[device];
        if let Some(code) = context.lost {
            return Err(code);
        }
        if context.retained == 0 {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }

    /// Marks a context as lost: every later call in it returns this code.
    pub(crate) fn lose(&mut self, device: usize, code: Code) {
        self.contexts[device].lost.get_or_insert(code);
        NEWS.notify_all();
    }

    pub(crate) fn live(&self) -> usize {
        let streams = self.lines.values();
        let streams = streams.filter(|line| line.open && line.kind != Kind::Null);
        streams.count() + self.events.len() + self.modules.len()
    }

    pub(crate) fn clear(&mut self, device: usize) {
        self.contexts[device].null = None;
        self.contexts[device].peers.clear();
        self.events.retain(|_, event| event.device != device);
        self.modules.retain(|_, of| *of != device);
        self.functions.retain(|_, function| function.device != device);
        for line in self.lines.values_mut().filter(|line| line.device == device) {
            line.open = false;
        }
        NEWS.notify_all();
    }
}

thread_local! {
    /// The devices whose contexts the thread has pushed, the current one last.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn current() -> Option<usize> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

pub(crate) fn push(device: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(device));
}

pub(crate) fn pop() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}
