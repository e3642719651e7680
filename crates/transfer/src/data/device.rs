//! Memory of a GPU as a region.

use std::{ops::Range, sync::Arc};

use super::{
    ahead::AHEAD,
    fence::Inside,
    operation::{Operation, RegionError},
    region::{BindError, Later, LaterStream, Region},
};
use crate::{
    device::{DeviceError, DeviceMemory, DeviceStream, PIECE},
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
        Self::Device {
            why: error.to_string().into(),
        }
    }
}

impl Later for DeviceMemory {
    fn extents(&self) -> Vec<u64> {
        let allocations = (0..self.allocations()).filter_map(|number| self.allocation(number));
        allocations.map(|(_, len)| len).collect()
    }

    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn LaterStream>, BindError> {
        match DeviceStream::new(&program, self) {
            Ok(stream) => Ok(Arc::new(Laid(stream))),
            Err(DeviceError::Check(error)) => Err(BindError::Check(error)),
            Err(error) => Err(BindError::Region(error.into())),
        }
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

    fn scatter(&self, position: u64, bytes: Vec<u8>, inside: &Inside) -> Operation<()> {
        let (operation, completion) = Operation::new(inside);
        let told = move |done: Result<_, DeviceError>| {
            completion.complete(done.map_err(RegionError::from));
        };
        self.0.scatter(position, bytes, Box::new(told));
        operation
    }
}

const _: () = assert!(AHEAD <= PIECE, "a window is one piece");
