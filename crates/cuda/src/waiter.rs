//! Threads that wait until streams have come to marks.
//!
//! The driver has a thread sleep until the GPU has come to one event, and to no other. So each stream in which marks are waited for has a
//! thread, which waits for the oldest: a mark that is not come to costs no processor time, and a stream that stands still holds up no
//! other's marks.
//!
//! One thread would do if streams of our own waited for the engine's and called a host function then. But a stream that waits takes
//! one of the few queues that a GPU has for them, where others of the engine's streams may come behind it; and a driver calls all host
//! functions on a thread of its own, ours behind the engine's.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, mem};

use crate::context::Context;
use crate::error::DeviceError;
use crate::queue::Told;
use crate::resources::Event;
use crate::threads::{join, spawn};

/// For how long a thread has no mark before it ends. Engines that work mark their streams more often.
const LINGER: Duration = Duration::from_secs(10);

/// How long it takes until the driver is asked again that did not say when an event is come to.
const PAUSE: Duration = Duration::from_millis(1);

/// The threads of a GPU that wait for marks.
pub(crate) struct Waiters {
    context: Arc<Context>,
    shared: Arc<Shared>,
}

/// Tells whether marks are waited for.
#[derive(Clone)]
pub(crate) struct Pending(Arc<Shared>);

#[derive(Default)]
struct Shared {
    streams: Mutex<Streams>,
    /// Tells of new marks, and of the end.
    changed: Condvar,
}

/// The streams in which marks are waited for, by the driver's numbers.
#[derive(Default)]
struct Streams {
    /// The oldest first.
    marks: BTreeMap<u64, VecDeque<Marked>>,
    threads: BTreeMap<u64, JoinHandle<()>>,
    /// Whether there will be no more.
    ends: bool,
}

struct Marked {
    event: Arc<Event>,
    told: Told<()>,
}

impl Waiters {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let (context, shared) = (context.clone(), Arc::default());
        Self { context, shared }
    }

    /// Has somebody told, on a thread for this stream, when it has come to an event that was [made for that](Event::awaited).
    pub(crate) fn watch(&self, stream: u64, event: Arc<Event>, told: Told<()>) {
        if let Err(error) = self.context.check_process() {
            // In a child that was forked off the threads are missing, and the driver says nothing.
            return told(Err(error));
        }
        let mut streams = self.shared.lock();
        if !streams.marks.contains_key(&stream) {
            let (name, shared) = (format!("transload-mark{stream}"), self.shared.clone());
            match spawn(name, move || shared.work(stream)) {
                Ok(thread) => drop(streams.threads.insert(stream, thread)),
                Err(error) => {
                    drop(streams);
                    return told(Err(error));
                }
            }
        }
        let marks = streams.marks.entry(stream).or_default();
        marks.push_back(Marked { event, told });
        drop(streams);
        self.shared.changed.notify_all();
    }

    pub(crate) fn pending(&self) -> Pending {
        Pending(self.shared.clone())
    }

    /// Whether the thread of a stream may never end: the stream has not come to all marks that are waited for, or the device is lost.
    fn stands_still(&self, stream: u64) -> bool {
        if self.context.check_lost().is_err() {
            return true;
        }
        let streams = self.shared.lock();
        let last = streams.marks.get(&stream).and_then(|marks| marks.back());
        let Some(event) = last.map(|last| last.event.clone()) else {
            return false;
        };
        drop(streams);
        let entered = self.context.enter();
        !entered.is_ok_and(|entered| event.is_done(&entered) == Ok(true))
    }
}

impl Pending {
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().marks.is_empty()
    }

    /// Takes all who wait for a mark. Where the device is lost the driver may let none of their threads go.
    pub(crate) fn take(&self) -> Vec<Told<()>> {
        let mut streams = self.0.lock();
        let left = streams.marks.values_mut().flat_map(mem::take);
        left.map(|left| left.told).collect()
    }
}

impl Drop for Waiters {
    /// Waits until the threads have ended, but for those whose streams stand still: they end when the driver lets go of them.
    fn drop(&mut self) {
        let mut streams = self.shared.lock();
        streams.ends = true;
        let threads = mem::take(&mut streams.threads);
        drop(streams);
        self.shared.changed.notify_all();
        for (stream, thread) in threads {
            if !self.stands_still(stream) {
                join(thread);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the marks of a stream, and tells of each, until there is none for a while.
    fn work(&self, stream: u64) {
        while let Some(event) = self.oldest(stream) {
            let done = until_done(&event);
            // Unless it was taken meanwhile.
            let is_it = |first: &Marked| Arc::ptr_eq(&first.event, &event);
            let mut streams = self.lock();
            let marks = streams.marks.get_mut(&stream);
            let marks = marks.filter(|marks| marks.front().is_some_and(is_it));
            let first = marks.and_then(VecDeque::pop_front);
            drop(streams);
            drop(event);
            if let Some(Marked { event, told }) = first {
                drop(event);
                // One that panics is its caller's fault, and others wait for theirs.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| told(done)));
            }
        }
    }

    /// The oldest mark of a stream; waits for one. Without, nobody waits for marks of the stream any more.
    fn oldest(&self, stream: u64) -> Option<Arc<Event>> {
        let none = |streams: &mut Streams| !streams.ends && streams.marks.get(&stream).is_none_or(VecDeque::is_empty);
        let waited = self.changed.wait_timeout_while(self.lock(), LINGER, none);
        let (mut streams, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let first = streams.marks.get(&stream).and_then(|marks| marks.front());
        let first = first.map(|first| first.event.clone());
        if first.is_none() {
            streams.marks.remove(&stream);
            streams.threads.remove(&stream);
        }
        first
    }
}

/// Sleeps until the stream of an event has come to it, or the device is lost.
fn until_done(event: &Event) -> Result<(), DeviceError> {
    loop {
        match event.wait() {
            Ok(true) => return Ok(()),
            Err(lost) if lost.is_lost() => return Err(lost),
            // That says nothing of what comes before the event, which may still use somebody's memory.
            Ok(false) | Err(_) => thread::sleep(PAUSE),
        }
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}
