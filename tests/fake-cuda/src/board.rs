//! All that the driver knows but memory: contexts, streams with their queues, events, modules. One lock guards it, and
//! one condition tells of every change, so that who waits for what can be seen in one place.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::time::Instant;

use crate::code::*;
use crate::settings::{Random, settings};

/// A number that stands for something the driver made. None is used twice in a process.
pub(crate) type Handle = usize;

pub(crate) struct Board {
    /// Whether streams stop before their next operation.
    pub(crate) held: bool,
    /// One for each device: its primary context.
    pub(crate) contexts: Vec<Context>,
    pub(crate) lines: HashMap<Handle, Line>,
    pub(crate) events: HashMap<Handle, Event>,
    /// The device of each.
    pub(crate) modules: HashMap<Handle, usize>,
    pub(crate) functions: HashMap<Handle, Function>,
    last_handle: Handle,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) retained: u32,
    /// The sticky error that lost it.
    pub(crate) lost: Option<Code>,
    /// Whether its streams stop before their next operation.
    pub(crate) held: bool,
    /// Its NULL stream, once something used it.
    pub(crate) null: Option<Handle>,
    /// The devices whose memory its kernels may use besides.
    pub(crate) peers: HashSet<usize>,
    /// How many streams were made in it.
    pub(crate) streams: usize,
    /// The streams of the operations that have not begun, for each hardware queue in the order in which they were given.
    pub(crate) queues: HashMap<usize, VecDeque<Handle>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Blocking,
    NonBlocking,
}

/// A stream: what its thread has to do. It outlives the stream's handle until that is done.
pub(crate) struct Line {
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// The hardware queue that it shares with others.
    pub(crate) shared: Option<usize>,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    /// Whether it stops before its next operation.
    pub(crate) held: bool,
    /// Whether it says that it is captured into a graph. Its operations are done all the same.
    pub(crate) capturing: bool,
    /// Whether its handle is good.
    pub(crate) open: bool,
}

/// What an operation does; an error loses the context.
pub(crate) type Work = Box<dyn FnOnce(&mut Random) -> Result + Send>;

pub(crate) struct Operation {
    pub(crate) after: Vec<Mark>,
    pub(crate) work: Work,
}

/// A place in a stream's work: after its `number`th operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) line: Handle,
    pub(crate) number: u64,
}

pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) timing: bool,
    /// Where it was last recorded.
    pub(crate) mark: Option<Mark>,
    /// When its stream got there.
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

/// Tells of changes to the board.
pub(crate) static NEWS: Condvar = Condvar::new();

/// Locks the board. Who holds it does not ask for the lock of memory.
pub(crate) fn board() -> MutexGuard<'static, Board> {
    BOARD.lock().unwrap()
}

impl Board {
    /// Makes a handle.
    pub(crate) fn handle(&mut self) -> Handle {
        self.last_handle += 16;
        self.last_handle
    }

    /// Whether all work before the mark is done.
    pub(crate) fn reached(&self, mark: &Mark) -> bool {
        let line = self.lines.get(&mark.line);
        line.is_none_or(|line| line.done >= mark.number)
    }

    /// Whether a stream's thread may do its next operation. In a lost context it throws its operations away.
    pub(crate) fn may_start(&self, handle: Handle) -> bool {
        let line = &self.lines[&handle];
        let next = &line.queue[0];
        let context = &self.contexts[line.device];
        let held = self.held || context.held || line.held;
        context.lost.is_some() || (!held && self.is_first(handle) && next.after.iter().all(|mark| self.reached(mark)))
    }

    /// Whether the next operation of a stream is at the head of its hardware queue. One that has begun is out of it, so it
    /// holds up only what waits for it.
    fn is_first(&self, handle: Handle) -> bool {
        let line = &self.lines[&handle];
        let first = |queue| self.contexts[line.device].queues[&queue].front();
        line.shared.is_none_or(|queue| first(queue) == Some(&handle))
    }

    /// Takes the next operation of a stream out of all queues.
    pub(crate) fn take(&mut self, handle: Handle) -> Operation {
        let line = self.lines.get_mut(&handle).expect("its thread removes it");
        if let Some(queue) = line.shared {
            let queue = self.contexts[line.device].queues.entry(queue).or_default();
            // In a lost context it need not be the first.
            let at = queue.iter().position(|other| *other == handle);
            at.and_then(|at| queue.remove(at));
        }
        line.queue.pop_front().expect("it may start")
    }

    /// The end of all that was given to those lines of a device so far.
    pub(crate) fn marks(&self, device: usize, which: impl Fn(Handle, &Line) -> bool) -> Vec<Mark> {
        let lines = self.lines.iter();
        lines
            .filter(|(handle, line)| line.device == device && which(**handle, line))
            .map(|(&line, state)| Mark { line, number: state.submitted })
            .collect()
    }

    /// The sticky error of a context, or that it is not there any more.
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

    /// Loses a context: every later call in it gives this code.
    pub(crate) fn lose(&mut self, device: usize, code: Code) {
        self.contexts[device].lost.get_or_insert(code);
        NEWS.notify_all();
    }

    /// How many things were made and not destroyed.
    pub(crate) fn live(&self) -> usize {
        let streams = self.lines.values();
        let streams = streams.filter(|line| line.open && line.kind != Kind::Null);
        streams.count() + self.events.len() + self.modules.len()
    }

    /// Forgets what was made in a context.
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

/// The device of the thread's current context.
pub(crate) fn current() -> Option<usize> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

/// Makes a context current, above the one that was.
pub(crate) fn push(device: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(device));
}

/// Makes the context below current again.
pub(crate) fn pop() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}
