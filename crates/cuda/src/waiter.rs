//! Threads that wait until streams reach marks.
//!
//! The driver can block a thread until the GPU reaches one event, and only one. So each stream with pending marks has a
//! thread, which waits for the oldest mark. A pending mark costs no processor time, and a stream that makes no progress
//! delays no other stream's marks.
//!
//! One thread would do if streams of this crate waited for the engine's and then called a host function. But a waiting
//! stream takes one of the few queues that a GPU has for streams, where the engine's streams may end up behind it. A
//! driver also runs all host functions on one thread, ours behind the engine's.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, mem};

use crate::context::Context;
use crate::error::DeviceError;
use crate::resources::Event;
use crate::threads::Told;
use crate::threads::{join, spawn};

/// How long a thread stays without a mark before it ends. A busy engine marks its streams more often.
const LINGER: Duration = Duration::from_secs(10);

/// The pause before the driver is asked again after it failed to wait for an event.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Waiters {
    context: Arc<Context>,
    shared: Arc<Shared>,
}

#[derive(Clone)]
pub(crate) struct Pending(Arc<Shared>);

#[derive(Default)]
struct Shared {
    streams: Mutex<Streams>,
    /// Signals new marks, and the end.
    changed: Condvar,
}

/// The streams with pending marks, by the driver's ids.
#[derive(Default)]
struct Streams {
    /// Pending marks of each stream, the oldest first.
    marks: BTreeMap<u64, VecDeque<Marked>>,
    threads: BTreeMap<u64, JoinHandle<()>>,
    /// Whether the GPU is closing, so that no marks follow.
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

    /// Calls `told` on a thread for this stream once the stream has reached an event made by [`Event::awaited`].
    pub(crate) fn watch(&self, stream: u64, event: Arc<Event>, told: Told<()>) {
        if let Err(error) = self.context.check_process() {
            // A forked child has none of the threads, and cannot use the driver.
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

    /// Returns whether the thread of a stream may never end, because the stream has not reached all pending marks or
    /// the device is lost.
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

    /// Takes the callbacks of all pending marks. If the device is lost, the driver may never wake the threads that wait
    /// for them.
    pub(crate) fn take(&self) -> Vec<Told<()>> {
        let mut streams = self.0.lock();
        let left = streams.marks.values_mut().flat_map(mem::take);
        left.map(|left| left.told).collect()
    }
}

impl Drop for Waiters {
    /// Joins the threads, except those whose streams make no progress: these end when the driver wakes them.
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

    /// Waits for the marks of a stream and reports each, until there has been none for [`LINGER`].
    fn work(&self, stream: u64) {
        while let Some(event) = self.oldest(stream) {
            let done = until_done(&event);
            // `Pending::take` may have removed the mark meanwhile.
            let is_it = |first: &Marked| Arc::ptr_eq(&first.event, &event);
            let mut streams = self.lock();
            let marks = streams.marks.get_mut(&stream);
            let marks = marks.filter(|marks| marks.front().is_some_and(is_it));
            let first = marks.and_then(VecDeque::pop_front);
            drop(streams);
            drop(event);
            if let Some(Marked { event, told }) = first {
                drop(event);
                // A panic in a callback is its caller's fault, and must not lose the other callbacks.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| told(done)));
            }
        }
    }

    /// Returns the oldest mark of a stream, after waiting for one. If there is none, removes the stream's entries, and
    /// the thread must end.
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

fn until_done(event: &Event) -> Result<(), DeviceError> {
    loop {
        match event.wait() {
            Ok(true) => return Ok(()),
            Err(lost) if lost.is_lost() => return Err(lost),
            // A failed wait says nothing of the work before the event, which may still use the caller's memory.
            Ok(false) | Err(_) => thread::sleep(PAUSE),
        }
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}
