//! Memory of the tests that has done nothing when a call returns: operations are done later, out of order, or never.

use std::{
    ops::{DerefMut, Range},
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    fence::Inside,
    operation::{Operation, RegionError},
};
use crate::{
    copy::{MemoryStream, StreamError, settle},
    memory::Memory,
};

type Work = Box<dyn FnOnce() + Send>;

/// Host memory whose operations wait until the test has them [done](Self::work).
#[derive(Clone, Debug)]
pub(crate) struct LateMemory {
    memory: Memory,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    submitted: Mutex<Vec<Work>>,
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

impl LateMemory {
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            queue: Arc::default(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many operations have been submitted and are not done.
    pub(crate) fn pending(&self) -> usize {
        self.queue.lock().len()
    }

    /// Does the operation that `choose` points out of so many, if there is any.
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

    /// Forgets what was submitted without doing it.
    pub(crate) fn lose(&self) {
        self.queue.lock().clear();
    }

    pub(crate) fn cursor(&self, stream: &MemoryStream, position: u64) -> LateCursor {
        LateCursor {
            memory: self.clone(),
            stream: stream.clone(),
            position,
            staged: Vec::new(),
        }
    }

    fn submit<T: Send + 'static>(
        &self,
        inside: &Inside,
        work: impl FnOnce() -> Result<T, StreamError> + Send + 'static,
    ) -> Operation<T> {
        let (operation, completion) = Operation::new(inside);
        let work = move || completion.complete(work());
        self.queue.lock().push(Box::new(work));
        operation
    }
}

#[derive(Debug)]
pub(crate) struct LateCursor {
    memory: LateMemory,
    stream: MemoryStream,
    /// Of the first byte that is not submitted.
    position: u64,
    staged: Vec<u8>,
}

impl LateCursor {
    pub(crate) async fn gather<B>(
        &mut self,
        mut buffer: B,
        range: Range<usize>,
        inside: &Inside,
    ) -> Result<B, RegionError>
    where
        B: DerefMut<Target = [u8]> + Send + 'static,
    {
        let (stream, position) = (self.stream.clone(), self.position);
        self.position += range.len() as u64;
        let gather = move || {
            let mut cursor = stream.cursor(position)?;
            cursor.gather(&mut buffer[range], None)?;
            Ok(buffer)
        };
        self.memory.submit(inside, gather).await
    }

    pub(crate) fn scatter(&mut self, bytes: &[u8]) {
        self.staged.extend_from_slice(bytes);
    }

    pub(crate) fn submit(&mut self, inside: &Inside) -> Option<Operation<()>> {
        if self.staged.is_empty() {
            return None;
        }
        let (stream, position) = (self.stream.clone(), self.position);
        let staged = std::mem::take(&mut self.staged);
        self.position += staged.len() as u64;
        let scatter = move || {
            stream.cursor(position)?.scatter(&staged, None)?;
            settle();
            Ok(())
        };
        Some(self.memory.submit(inside, scatter))
    }
}
