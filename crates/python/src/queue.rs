//! Puts and reads objects in the background, like LMCache's native clients: a submit returns at once, and a descriptor
//! signals results.
//!
//! Threads of a queue never take the interpreter's lock. They only know addresses of Python's memory; the buffers stay
//! with the queue until its results are drained, and are released by the thread that drains or closes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use transload::archive::objects;

use crate::buffer::Buffer;
use crate::errors::{StoreError, chain};
use crate::in_process::InProcess;
use crate::objects::{get, open, put, slices};
use crate::values::{self, Values};

/// The default number of threads of a queue. Each waits for a store most of the time.
const DEFAULT_WORKERS: usize = 4;
const MOST_WORKERS: usize = 64;

/// The most submits that are not drained yet, since their keys and buffers are held.
const MOST_PENDING: usize = 1 << 16;

/// A queue that puts and reads objects of a namespace in the background. It has the methods of LMCache's native
/// clients.
///
/// Threads of the queue process submitted batches in no particular order. Keys and values are those of `Objects`; the
/// queue holds the buffers until their result is drained, and others must not write them until then. Ids are unique for
/// all operations of a queue. When there are results `event_fd` becomes readable, once for any number of them.
///
/// Args:
///     store: the store's URI, as for `Archive`.
///     namespace: a part of every key, as for `Objects`.
///     workers: the number of batches processed at once, at most 64; 4 if None.
///     threads: the number of threads that hash and copy for one batch, as for `Objects`.
///
/// Raises:
///     StoreError: the store cannot be opened; 65,536 results were not drained; or the process was forked off.
///     ValueError: the queue is closed, or a value cannot be used. A fault in a key is reported in the batch's result.
///     TypeError: a key or a value has the wrong type.
#[pyclass(frozen, module = "transload")]
pub(crate) struct ObjectQueue {
    inner: InProcess<Queue>,
}

/// The result of a batch: its id, whether it succeeded, the error, and an answer for each key.
type Completion = (u64, bool, String, Option<Vec<bool>>);

#[pymethods]
impl ObjectQueue {
    #[new]
    #[pyo3(signature = (store, namespace, *, workers = None, threads = None))]
    fn new(
        py: Python<'_>,
        store: &str,
        namespace: &Bound<'_, PyAny>,
        workers: Option<usize>,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        let workers = workers.unwrap_or(DEFAULT_WORKERS);
        if !(1..=MOST_WORKERS).contains(&workers) {
            let wrong = format!("workers is 1 to {MOST_WORKERS}");
            return Err(PyValueError::new_err(wrong));
        }
        let objects = open(py, store, namespace, threads)?;
        let queue = Queue::start(objects, workers)
            .map_err(|error| PyRuntimeError::new_err(format!("no threads for a queue: {error}")))?;
        Ok(Self { inner: InProcess::new(queue) })
    }

    /// Returns a descriptor that is readable while there are results. It stays open as long as the queue exists.
    fn event_fd(&self) -> PyResult<RawFd> {
        Ok(self.inner.get()?.shared.readable.as_raw_fd())
    }

    /// Puts objects. The result has no answers.
    fn submit_batch_set(&self, keys: &Bound<'_, PyAny>, memoryviews: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (queue, keys) = (self.inner.get()?, values::keys(keys)?);
        let (values, held) = Values::read(memoryviews, keys.len(), false)?;
        queue.submit(Batch::Set(keys, values), held)
    }

    /// Reads objects into memory. The result says for each whether it was read.
    fn submit_batch_get(&self, keys: &Bound<'_, PyAny>, memoryviews: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (queue, keys) = (self.inner.get()?, values::keys(keys)?);
        let (values, held) = Values::read(memoryviews, keys.len(), true)?;
        queue.submit(Batch::Get(keys, values), held)
    }

    /// Looks objects up. The result says for each whether it exists.
    fn submit_batch_exists(&self, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (queue, keys) = (self.inner.get()?, values::keys(keys)?);
        queue.submit(Batch::Exists(keys), Vec::new())
    }

    /// Removes objects. The result is true for each, even if it did not exist.
    fn submit_batch_delete(&self, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (queue, keys) = (self.inner.get()?, values::keys(keys)?);
        queue.submit(Batch::Delete(keys), Vec::new())
    }

    /// Returns the available results and makes the descriptor unreadable. It does not wait.
    ///
    /// Returns:
    ///     A list of `(id, ok, error, answers)`: whether the batch succeeded, the error if not, and a list of one bool
    ///         for each key, or None.
    fn drain_completions(&self) -> PyResult<Vec<Completion>> {
        let (completed, held) = self.inner.get()?.shared.drain();
        // Releasing a buffer runs foreign code, so no lock is held here.
        drop(held);
        Ok(completed)
    }

    /// Ends the queue: waits for running batches, and completes submitted puts and removals. Batches that only return
    /// answers are dropped, and so are results. A second call waits for the first.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.get()?.close(py);
        Ok(())
    }
}

/// A queue, which is closed when this is dropped.
struct Queue {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Queue {
    fn start(objects: objects::Objects, workers: usize) -> io::Result<Self> {
        let (readable, signal) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        let (state, batch_ready) = Default::default();
        let shared = Arc::new(Shared { objects, state, batch_ready, readable, signal });
        let queue = Self { shared, workers: Mutex::default() };
        for _ in 0..workers {
            let shared = queue.shared.clone();
            let worker = Builder::new().name("transload-queue".to_owned()).spawn(move || shared.work())?;
            lock(&queue.workers).push(worker);
        }
        Ok(queue)
    }

    fn submit(&self, batch: Batch, held: Vec<Buffer>) -> PyResult<u64> {
        let mut state = lock(&self.shared.state);
        if state.closed {
            return Err(PyValueError::new_err("the queue is closed"));
        }
        if state.held.len() >= MOST_PENDING {
            return Err(StoreError::new_err(format!(
                "{MOST_PENDING} results of this queue wait to be drained: drain them first"
            )));
        }
        state.last += 1;
        let id = state.last;
        state.held.insert(id, held);
        state.batches.push_back((id, batch));
        drop(state);
        self.shared.batch_ready.notify_one();
        Ok(id)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.join());
        let drained = self.shared.drain();
        let dropped = std::mem::take(&mut lock(&self.shared.state).held);
        // Dropped without a lock, as in `drain_completions`.
        drop((drained, dropped));
    }

    /// Stops the queue and waits until all its threads have ended.
    fn join(&self) {
        {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.batches.retain(|(_, batch)| batch.changes_something());
        }
        self.shared.batch_ready.notify_all();
        for worker in lock(&self.workers).drain(..) {
            // A thread that panicked has ended as well.
            let _ = worker.join();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Without an interpreter the process is ending, and its threads with it.
        let _ = Python::try_attach(|py| self.close(py));
    }
}

struct Shared {
    objects: objects::Objects,
    state: Mutex<State>,
    /// Signals a new batch, or that the queue is closed.
    batch_ready: Condvar,
    /// Readable while there are results. It is a socket, since not every system has an eventfd.
    readable: UnixStream,
    signal: UnixStream,
}

#[derive(Default)]
struct State {
    last: u64,
    batches: VecDeque<(u64, Batch)>,
    completed: Vec<Completion>,
    /// The buffers of each batch that has not been drained.
    held: HashMap<u64, Vec<Buffer>>,
    closed: bool,
}

impl Shared {
    fn work(&self) {
        while let Some((id, batch)) = self.next() {
            let run = catch_unwind(AssertUnwindSafe(|| batch.run(&self.objects)));
            let completion = match run {
                Ok(Ok(answers)) => (id, true, String::new(), answers),
                Ok(Err(error)) => (id, false, chain(&error), None),
                Err(_) => (id, false, "a panic: see stderr".to_owned(), None),
            };
            let mut state = lock(&self.state);
            state.completed.push(completion);
            if state.completed.len() == 1 {
                // At most one byte is ever in the socket, so this does not block.
                let _ = (&self.signal).write(&[1]);
            }
        }
    }

    /// Waits for the next batch. Returns `None` once the queue is closed and empty.
    fn next(&self) -> Option<(u64, Batch)> {
        let mut state = lock(&self.state);
        loop {
            if let Some(next) = state.batches.pop_front() {
                return Some(next);
            }
            if state.closed {
                return None;
            }
            state = self.batch_ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn drain(&self) -> (Vec<Completion>, Vec<Vec<Buffer>>) {
        let mut state = lock(&self.state);
        if !state.completed.is_empty() {
            while let Err(error) = (&self.readable).read(&mut [0])
                && error.kind() == ErrorKind::Interrupted
            {}
        }
        let completed = std::mem::take(&mut state.completed);
        let held = completed.iter().filter_map(|(id, ..)| state.held.remove(id));
        let held = held.collect();
        (completed, held)
    }
}

enum Batch {
    Set(Vec<Vec<u8>>, Values),
    Get(Vec<Vec<u8>>, Values),
    Exists(Vec<Vec<u8>>),
    Delete(Vec<Vec<u8>>),
}

impl Batch {
    /// Returns whether the batch has effects beyond its result.
    fn changes_something(&self) -> bool {
        matches!(self, Self::Set(..) | Self::Delete(_))
    }

    fn run(&self, objects: &objects::Objects) -> Result<Option<Vec<bool>>, objects::ObjectError> {
        let are_some = |found: Vec<Option<objects::Info>>| found.iter().map(Option::is_some).collect();
        match self {
            Self::Set(keys, values) => {
                // SAFETY: the queue holds the buffers until the result is drained or all threads have ended; a bare
                // address comes with the caller's word.
                let bytes = unsafe { values.to_put() };
                put(objects, keys, &vec![Vec::new(); keys.len()], &bytes).map(|_| None)
            }
            Self::Get(keys, values) => {
                // SAFETY: as above.
                let mut memory = unsafe { values.to_fill() };
                get(objects, keys, &mut memory).map(|got| Some(are_some(got)))
            }
            Self::Exists(keys) => objects.has(&slices(keys)).map(|had| Some(are_some(had))),
            Self::Delete(keys) => objects.delete(&slices(keys)).map(|()| Some(vec![true; keys.len()])),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
