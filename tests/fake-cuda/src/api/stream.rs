//! Streams.

use std::ffi::{c_int, c_uint};

use super::context::handle;
use crate::board::{Handle, Kind, NEWS, board};
use crate::code::*;
use crate::entry::{Out, driver};
use crate::faults;
use crate::stream;

/// CU_STREAM_NON_BLOCKING.
const NON_BLOCKING: c_uint = 1;

driver! {
    fn cuStreamCreate(made: Out<Handle>, flags: c_uint) in_context |device| create(device, made, flags);

    // Streams of the greatest priority are counted under a separate name.
    fn cuStreamCreateWithPriority(made: Out<Handle>, flags: c_uint, priority: c_int) in_context |device| {
        if priority == stream::GREATEST_PRIORITY {
            faults::count("greatest priority")?;
        }
        create(device, made, flags)
    };

    // Pending work of the stream is still executed.
    fn cuStreamDestroy_v2(stream: Handle) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        if line != stream {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        board.lines.get_mut(&line).ok_or(CUDA_ERROR_INVALID_HANDLE)?.open = false;
        NEWS.notify_all();
        Ok(())
    };

    fn cuStreamQuery(stream: Handle) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        let idle = stream::pending(&board, line).iter().all(|mark| board.reached(mark));
        if idle { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    };

    fn cuStreamSynchronize(stream: Handle) in_context |device| {
        let mut locked = board();
        let line = stream::resolve(&mut locked, device, stream)?;
        let device = locked.lines[&line].device;
        let pending = stream::pending(&locked, line);
        drop(locked);
        stream::wait(device, &pending)
    };

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        let event = board.events.get(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // The last record counts, even if the event is recorded again or destroyed later.
        if let Some(mark) = event.mark {
            stream::enqueue(&mut board, line, vec![mark], Box::new(|_| Ok(())));
        }
        Ok(())
    };

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        context.give(handle(board.lines[&line].device))
    };

    // Handles are never reused, so they can serve as ids.
    fn cuStreamGetId(stream: Handle, id: Out<u64>) in_context |device| {
        let line = stream::resolve(&mut board(), device, stream)?;
        id.give(line as u64)
    };

    // CU_STREAM_CAPTURE_STATUS_NONE or CU_STREAM_CAPTURE_STATUS_ACTIVE.
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        status.give(board.lines[&line].capturing.into())
    };
}

fn create(device: usize, made: Out<Handle>, flags: c_uint) -> Result {
    let kind = match flags {
        0 => Kind::Blocking,
        NON_BLOCKING => Kind::NonBlocking,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    if made.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    made.give(stream::create(&mut board(), device, kind)?)
}
