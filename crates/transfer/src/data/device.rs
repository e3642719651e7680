//! Memory of a GPU as a region.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use tokio::sync::watch;

use super::{
    ahead::WINDOW,
    fence::Inside,
    operation::{Operation, RegionError},
    region::{Later, LaterStream, Region},
    shared::{Registration, Stretch},
};
use crate::{
    device::{
        DeviceError, DeviceMemory, Gpu,
        queue::{Held, PIECE, Reached, Told},
        stream::{DeviceStream, Way},
    },
    plan::program::StreamProgram,
};

impl From<DeviceMemory> for Region {
    fn from(memory: DeviceMemory) -> Self {
        let memory: Arc<dyn Later> = Arc::new(memory);
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
            error @ DeviceError::Stalled { .. } => Self::Stalled {
                why: error.to_string().into(),
            },
            error => Self::Device {
                why: error.to_string().into(),
            },
        }
    }
}

impl Later for DeviceMemory {
    fn extents(&self) -> Vec<u64> {
        let allocations = (0..self.allocations()).filter_map(|number| self.allocation(number));
        allocations.map(|(_, len)| len).collect()
    }

    fn device(&self) -> Option<u32> {
        Some(self.gpu().ordinal())
    }

    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn LaterStream>, RegionError> {
        Ok(Arc::new(Laid(DeviceStream::new(&program, self)?)))
    }

    fn lost(&self) -> watch::Receiver<bool> {
        self.gpu().lost()
    }

    unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Result<Registration, RegionError> {
        // SAFETY: the caller's word.
        Ok(Box::new(unsafe { self.gpu().register(start, len)? }))
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(self.gpu())
    }
}

#[derive(Debug)]
struct Laid(Arc<DeviceStream>);

impl LaterStream for Laid {
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

    fn on_gpu(&self) -> Option<Arc<DeviceStream>> {
        Some(self.0.clone())
    }

    fn scatter(&self, position: u64, bytes: Vec<u8>, inside: &Inside) -> Operation<()> {
        let (operation, completion) = Operation::new(inside);
        let told = move |done: Result<_, DeviceError>| {
            completion.complete(done.map_err(RegionError::from));
        };
        scatter(self.0.clone(), position, bytes, 0, Box::new(told));
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
        let told = move |done: Result<_, DeviceError>| {
            completion.complete(done.map_err(RegionError::from));
        };
        cross(self.0.clone(), way, position, shared, Box::new(told));
        operation
    }
}

/// Scatters what is left of some bytes, which begin at a position, piece by piece.
fn scatter(stream: Arc<DeviceStream>, start: u64, bytes: Vec<u8>, done: usize, told: Told<()>) {
    let of = stream.clone();
    of.acquire(Box::new(move |piece| match piece {
        Ok(mut piece) => {
            let end = bytes.len().min(done + PIECE);
            piece.bytes()[..end - done].copy_from_slice(&bytes[done..end]);
            let (of, range) = (stream.clone(), start + done as u64..start + end as u64);
            let then: Told<Held> = Box::new(move |piece| match piece.map(drop) {
                Ok(()) if end == bytes.len() => told(Ok(())),
                Ok(()) => scatter(stream, start, bytes, end, told),
                Err(error) => told(Err(error)),
            });
            piece.scatter(&of, range, then);
        }
        Err(error) => told(Err(error)),
    }));
}

/// Moves bytes between a stream, from a position on, and shared memory, piece by piece: by the copy engine alone where the
/// memory is registered, by way of the piece's own memory otherwise.
fn cross(stream: Arc<DeviceStream>, way: Way, position: u64, mut shared: Stretch, told: Told<()>) {
    let mut part = shared.split_front(PIECE);
    let len = part.len();
    let (of, end) = (stream.clone(), position + len as u64);
    let range = position..end;
    let then: Told<Held> = Box::new(move |held| match held.map(drop) {
        Ok(()) if !shared.is_empty() => cross(stream, way, end, shared, told),
        done => {
            // Whoever hears of it may use the memory again.
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
                Ok(held) => held.scatter(&of, range, then),
                Err(error) => then(Err(error)),
            }
        })),
    }
}

/// Shared memory that is registered.
struct Pinned(Stretch);

// SAFETY: a stretch is mapped, and left alone by whoever has lent it, for as long as it is there. Its memory was registered, which it
// stays until the mapping goes.
unsafe impl Reached for Pinned {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

const _: () = assert!(WINDOW <= PIECE, "a window is one piece");
