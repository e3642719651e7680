//! Events.

use std::ffi::c_uint;

use crate::board::{Event, Handle, board};
use crate::code::*;
use crate::entry::{Out, driver};
use crate::stream;

/// CU_EVENT_DISABLE_TIMING, and all flags.
const DISABLE_TIMING: c_uint = 2;
const FLAGS: c_uint = 7;

driver! {
    fn cuEventCreate(made: Out<Handle>, flags: c_uint) in_context |device| {
        if made.is_null() || flags & !FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut board = board();
        let handle = board.handle();
        let timing = flags & DISABLE_TIMING == 0;
        board.events.insert(handle, Event { device, timing, mark: None, at: None });
        made.give(handle)
    };

    fn cuEventRecord(event: Handle, stream: Handle) in_context |device| {
        let mut board = board();
        let line = stream::resolve(&mut board, device, stream)?;
        let recorded = board.events.get(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if recorded.device != board.lines[&line].device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        stream::record(&mut board, line, event);
        Ok(())
    };

    fn cuEventQuery(event: Handle) in_context |_| {
        let board = board();
        let event = board.events.get(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        board.usable(event.device)?;
        let reached = event.mark.is_none_or(|mark| board.reached(&mark));
        if reached { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    };

    fn cuEventSynchronize(event: Handle) in_context |_| {
        let locked = board();
        let event = locked.events.get(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (device, mark) = (event.device, event.mark);
        drop(locked);
        stream::wait(device, mark.as_slice())
    };

    // Streams that wait for the event continue to wait.
    fn cuEventDestroy_v2(event: Handle) in_context |_| {
        board().events.remove(&event).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    };

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) in_context |_| {
        let board = board();
        let event = |handle| {
            let event = board.events.get(&handle).filter(|event: &&Event| event.timing && event.mark.is_some());
            event.ok_or(CUDA_ERROR_INVALID_HANDLE)
        };
        let (start, end) = (event(start)?, event(end)?);
        if start.device != end.device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let (Some(from), Some(to)) = (start.at, end.at) else {
            return Err(CUDA_ERROR_NOT_READY);
        };
        let forward = to.saturating_duration_since(from).as_secs_f32();
        let backward = from.saturating_duration_since(to).as_secs_f32();
        milliseconds.give((forward - backward) * 1e3)
    };
}
