//! Memory for tests that works asynchronously: operations are done later, out of order, or never.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use tokio::sync::watch;

use super::{
    async_memory::{AsyncMemory, AsyncStream, Room},
    fence::Inside,
    operation::{Operation, RegionError},
    region::Region,
    shared::{Registration, Stretch},
};
use transload_memory::Memory;
use transload_memory::copy::{MemoryStream, StreamError};
use transload_memory::internal::settle;
use transload_plan::program::StreamProgram;

/// Bytes of a room: more than are ever scattered at once.
const ROOM: usize = 4 << 20;

type Work = Box<dyn FnOnce() + Send>;

/// Host memory whose operations wait until the test [does](Self::work) them.
#[derive(Clone, Debug)]
pub(crate) struct DelayedMemory {
    memory: Memory,
    queue: Arc<Queue>,
    lost: watch::Sender<bool>,
}

#[derive(Default)]
struct Queue {
    submitted: Mutex<Vec<Work>>,
    rooms_are_late: AtomicBool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} operations", self.lock().len())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Vec<Work>> {
        self.submitted.lock().unwrap()
    }
}

impl DelayedMemory {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, queue: Arc::default(), lost: watch::Sender::new(false) }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes requests for buffers wait for an operation from now on, as if others held all of them.
    pub(crate) fn make_rooms_late(&self) {
        self.queue.rooms_are_late.store(true, SeqCst);
    }

    /// Returns the number of operations that were submitted and are not done.
    pub(crate) fn pending(&self) -> usize {
        self.queue.lock().len()
    }

    /// Does one operation, if there is any. `choose` gets their number and returns an index.
    pub(crate) fn work(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        let work = {
            let mut queue = self.queue.lock();
            if queue.is_empty() {
                return false;
            }
            let chosen = choose(queue.len());
            queue.swap_remove(chosen)
        };
        work();
        true
    }

    /// Drops the submitted operations without doing them.
    pub(crate) fn forget(&self) {
        self.queue.lock().clear();
    }

    /// Marks the memory as lost, which ends all operations.
    pub(crate) fn lose(&self) {
        self.lost.send_replace(true);
        while self.work(|_| 0) {}
    }

    fn submit<T: Send + 'static>(
        &self,
        inside: &Inside,
        work: impl FnOnce() -> Result<T, StreamError> + Send + 'static,
    ) -> Operation<T> {
        let (operation, completion) = Operation::new(inside);
        let lost = self.lost.clone();
        let work = move || match *lost.borrow() {
            true => completion.complete(Err(RegionError::Lost)),
            false => completion.complete(work().map_err(RegionError::from)),
        };
        self.queue.lock().push(Box::new(work));
        if *self.lost.borrow() {
            self.work(|count| count - 1);
        }
        operation
    }
}

impl From<DelayedMemory> for Region {
    fn from(memory: DelayedMemory) -> Self {
        let memory: Arc<dyn AsyncMemory> = Arc::new(memory);
        memory.into()
    }
}

impl AsyncMemory for DelayedMemory {
    fn extents(&self) -> Vec<u64> {
        Region::from(&self.memory).extents()
    }

    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn AsyncStream>, RegionError> {
        let stream = MemoryStream::new(program, self.memory.clone());
        Ok(Arc::new(DelayedStream { memory: self.clone(), stream: stream? }))
    }

    fn lost(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    unsafe fn register(
        &self,
        _: NonNull<u8>,
        _: usize,
        _: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Result<Registration, RegionError> {
        Ok(Box::new(()))
    }
}

#[derive(Clone, Debug)]
struct DelayedStream {
    memory: DelayedMemory,
    stream: MemoryStream,
}

impl AsyncStream for DelayedStream {
    fn bytes(&self) -> u64 {
        self.stream.bytes()
    }

    fn gather(&self, range: Range<u64>, mut into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>> {
        let stream = self.stream.clone();
        let gather = move || {
            into.resize((range.end - range.start) as usize, 0);
            stream.cursor(range.start)?.gather(&mut into, None)?;
            Ok(into)
        };
        self.memory.submit(inside, gather)
    }

    fn room(&self, inside: &Inside) -> Operation<Box<dyn Room>> {
        let room: Box<dyn Room> = Box::new(DelayedRoom { stream: self.clone(), bytes: vec![0; ROOM] });
        if self.memory.queue.rooms_are_late.load(SeqCst) {
            return self.memory.submit(inside, || Ok(room));
        }
        let (operation, completion) = Operation::new(inside);
        completion.complete(Ok(room));
        operation
    }

    fn gather_into(&self, position: u64, mut into: Stretch, inside: &Inside) -> Operation<()> {
        let stream = self.stream.clone();
        let gather = move || {
            let mut bytes = vec![0; into.len()];
            stream.cursor(position)?.gather(&mut bytes, None)?;
            into.put(&bytes);
            Ok(())
        };
        self.memory.submit(inside, gather)
    }

    fn scatter_from(&self, position: u64, from: Stretch, inside: &Inside) -> Operation<()> {
        let stream = self.stream.clone();
        let scatter = move || {
            let mut bytes = vec![0; from.len()];
            from.get(&mut bytes);
            stream.cursor(position)?.scatter(&bytes, None)?;
            settle();
            Ok(())
        };
        self.memory.submit(inside, scatter)
    }
}

#[derive(Debug)]
struct DelayedRoom {
    stream: DelayedStream,
    bytes: Vec<u8>,
}

impl Room for DelayedRoom {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn scatter(self: Box<Self>, position: u64, len: usize, inside: &Inside) -> Operation<()> {
        let Self { stream, bytes } = *self;
        let DelayedStream { memory, stream } = stream;
        memory.submit(inside, move || {
            stream.cursor(position)?.scatter(&bytes[..len], None)?;
            settle();
            Ok(())
        })
    }
}
