//! Memory of a GPU as a region.

use std::{any::Any, ops::Range, ptr::NonNull, sync::Arc};

use tokio::sync::watch;

use super::{
    async_cursor::WINDOW,
    async_memory::{AsyncMemory, AsyncStream, Room},
    error::ReceiveError,
    fence::Inside,
    intake::Intake,
    operation::{Operation, RegionError},
    region::{Region, RegionCursor},
    route_bytes::RouteCursor,
    shared::{Registration, Stretch},
};
use transload_cuda::internal::crossing::DmaBuffer;
use transload_cuda::internal::pool::{Held, PIECE};
use transload_cuda::internal::queue::Told;
use transload_cuda::internal::shuttle::Moved;
use transload_cuda::internal::stream::{DeviceStream, Way};
use transload_cuda::{DeviceError, DeviceMemory};
use transload_memory::copy::Crc32c;
use transload_plan::program::StreamProgram;
use transload_wire::internal::stream::TRAILER;

impl From<DeviceMemory> for Region {
    fn from(memory: DeviceMemory) -> Self {
        let memory: Arc<dyn AsyncMemory> = Arc::new(memory);
        memory.into()
    }
}

impl From<&DeviceMemory> for Region {
    fn from(memory: &DeviceMemory) -> Self {
        memory.clone().into()
    }
}

impl From<DeviceError> for RegionError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Check(error) => Self::Check(error),
            error @ DeviceError::Stalled { .. } => Self::Stalled { why: error.to_string().into() },
            error => Self::Device { why: error.to_string().into() },
        }
    }
}

impl AsyncMemory for DeviceMemory {
    fn extents(&self) -> Vec<u64> {
        let allocations = (0..self.allocations()).filter_map(|number| self.allocation(number));
        allocations.map(|(_, len)| len).collect()
    }

    fn device(&self) -> Option<u32> {
        Some(self.gpu().ordinal())
    }

    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn AsyncStream>, RegionError> {
        Ok(Arc::new(Laid(DeviceStream::new(&program, self)?)))
    }

    fn lost(&self) -> watch::Receiver<bool> {
        self.gpu().lost()
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, RegionError> {
        // SAFETY: the caller vouches for the bytes.
        let registered = unsafe { self.gpu().register(start, len, mapping)? };
        Ok(Box::new(registered))
    }
}

#[derive(Debug)]
struct Laid(Arc<DeviceStream>);

impl AsyncStream for Laid {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn gather(&self, range: Range<u64>, mut into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>> {
        let (operation, completion) = Operation::new(inside);
        let len = (range.end - range.start) as usize;
        self.0.gather(
            range,
            Box::new(move |piece| {
                let gathered = piece.map(|mut piece| {
                    into.clear();
                    into.extend_from_slice(&piece.bytes()[..len]);
                    into
                });
                completion.complete(gathered.map_err(RegionError::from));
            }),
        );
        operation
    }

    fn room(&self, inside: &Inside) -> Operation<Box<dyn Room>> {
        let (operation, completion) = Operation::new(inside);
        let stream = self.0.clone();
        self.0.acquire(Box::new(move |held| {
            let room = held.map(|held| Box::new(Acquired { held, stream }) as Box<dyn Room>);
            completion.complete(room.map_err(RegionError::from));
        }));
        operation
    }

    fn gather_into(&self, position: u64, into: Stretch, inside: &Inside) -> Operation<()> {
        self.cross(Way::Gather, position, into, inside)
    }

    fn scatter_from(&self, position: u64, from: Stretch, inside: &Inside) -> Operation<()> {
        self.cross(Way::Scatter, position, from, inside)
    }
}

impl Laid {
    fn cross(&self, way: Way, position: u64, shared: Stretch, inside: &Inside) -> Operation<()> {
        let (operation, completion) = Operation::new(inside);
        let on_done = move |done: Result<_, DeviceError>| {
            completion.complete(done.map_err(RegionError::from));
        };
        cross(self.0.clone(), way, position, shared, Box::new(on_done));
        operation
    }
}

/// A piece for bytes of a stream.
#[derive(Debug)]
struct Acquired {
    held: Held,
    stream: Arc<DeviceStream>,
}

impl Room for Acquired {
    fn bytes(&mut self) -> &mut [u8] {
        self.held.bytes()
    }

    fn scatter(self: Box<Self>, position: u64, len: usize, inside: &Inside) -> Operation<()> {
        let (operation, completion) = Operation::new(inside);
        let Self { held, stream } = *self;
        let on_done = move |held: Result<Held, _>| {
            completion.complete(held.map(drop).map_err(RegionError::from));
        };
        stream.scatter(held, position..position + len as u64, Box::new(on_done));
        operation
    }
}

impl RouteCursor {
    /// Moves over the next `len` bytes, all of which must be on a GPU, and returns their ranges in its streams.
    pub(crate) fn pass_on_gpu(&mut self, len: usize, inside: &Inside) -> Result<Vec<Moved>, RegionError> {
        let mut moved = Vec::new();
        self.each_section(len, inside, |cursor, bytes| {
            moved.push(pass(cursor, &bytes)?);
            Ok::<_, RegionError>(None)
        })?;
        Ok(moved)
    }
}

/// Moves a cursor over the next bytes, which are the given range of a slot.
fn pass(cursor: &mut RegionCursor, in_slot: &Range<usize>) -> Result<Moved, RegionError> {
    if let RegionCursor::Async(cursor) = cursor {
        let stream: Arc<dyn Any + Send + Sync> = cursor.stream.clone();
        if let Ok(laid) = stream.downcast::<Laid>() {
            let start = cursor.pass(in_slot.len());
            return Ok(Moved {
                stream: laid.0.clone(),
                range: start..start + in_slot.len() as u64,
                at: in_slot.start as u32,
            });
        }
    }
    Err(RegionError::Device { why: "a path between GPUs moves memory of CUDA devices only".into() })
}

impl Intake {
    /// Takes the next `bytes` bytes of the route, which must be on a GPU, and returns where they go. Their sum is
    /// [added](Self::add) when they are there.
    pub(crate) fn take_on_gpu(&mut self, bytes: usize, inside: &Inside) -> Result<Vec<Moved>, ReceiveError> {
        if self.decoder.is_some() {
            return Err(ReceiveError::Path("a codec's bytes came between GPUs".into()));
        }
        if bytes > self.body(bytes) {
            let planned = self.length;
            return Err(ReceiveError::TooLong { planned });
        }
        let moved = self.cursor.pass_on_gpu(bytes, inside)?;
        self.placed(bytes);
        Ok(moved)
    }

    /// Adds the sum of bytes taken by [`take_on_gpu`](Self::take_on_gpu), and the trailer if it follows them.
    pub(crate) fn add(&mut self, sum: &Crc32c, trailer: Option<&[u8; TRAILER]>) -> Result<(), ReceiveError> {
        self.sum.append(sum);
        match trailer {
            Some(bytes) => self.take_trailer(TRAILER, |trailer| trailer.copy_from_slice(bytes)),
            None => Ok(()),
        }
    }
}

/// Moves bytes between a stream, from a position on, and shared memory, piece by piece. If the memory is registered,
/// the copy engine does that alone; otherwise the bytes pass through the piece's own memory.
fn cross(stream: Arc<DeviceStream>, way: Way, position: u64, mut shared: Stretch, told: Told<()>) {
    let mut part = shared.split_front(PIECE);
    let len = part.len();
    let (of, end) = (stream.clone(), position + len as u64);
    let range = position..end;
    let then: Told<Held> = Box::new(move |held| match held.map(drop) {
        Ok(()) if !shared.is_empty() => cross(stream, way, end, shared, told),
        done => {
            // Dropped first: the callback may reuse the memory.
            drop(shared);
            told(done);
        }
    });
    match way {
        _ if part.is_registered() => of.carry(range, way, Box::new(Pinned(part)), then),
        Way::Gather => of.gather(
            range,
            Box::new(move |mut held| {
                if let Ok(held) = &mut held {
                    part.put(&held.bytes()[..len]);
                }
                drop(part);
                then(held);
            }),
        ),
        Way::Scatter => of.clone().acquire(Box::new(move |mut held| {
            if let Ok(held) = &mut held {
                part.get(&mut held.bytes()[..len]);
            }
            drop(part);
            match held {
                Ok(held) => of.scatter(held, range, then),
                Err(error) => then(Err(error)),
            }
        })),
    }
}

/// Shared memory that is registered with the driver.
struct Pinned(Stretch);

// SAFETY: a stretch is mapped, and its lender leaves it alone, for as long as it exists. Its memory was registered, and
// stays so until it is unmapped.
unsafe impl DmaBuffer for Pinned {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

const _: () = assert!(WINDOW <= PIECE, "a window is one piece");
