//! Contexts: the primary context of each device, and the current one of each thread.

use std::ffi::{c_int, c_uint};

use super::device::check;
use crate::board::{self, Handle, board, current};
use crate::code::*;
use crate::entry::{In, Out, driver};
use crate::memory;
use crate::settings::settings;
use crate::stream;

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) initialized || {
        let device = check(device)?;
        let mut board = board();
        let state = &mut board.contexts[device];
        state.lost.map_or(Ok(()), Err)?;
        context.give(handle(device))?;
        state.retained += 1;
        Ok(())
    };

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) initialized || {
        let device = check(device)?;
        let last = {
            let mut board = board();
            let state = &mut board.contexts[device];
            state.retained = state.retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            state.retained == 0
        };
        if last {
            // The context is destroyed with everything in it. If it is lost, its error is returned, and it is destroyed
            // as well.
            let outcome = stream::wait_for_all(device);
            let mut board = board();
            // Another thread may have retained it meanwhile, which keeps it.
            if board.contexts[device].retained == 0 {
                board.clear(device);
                memory::write().clear(device);
            }
            outcome?;
        }
        Ok(())
    };

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) initialized || {
        let device = check(device)?;
        flags.give(0)?;
        active.give((board().contexts[device].retained > 0).into())
    };

    fn cuCtxGetCurrent(context: Out<Handle>) initialized || {
        context.give(current().map_or(0, handle))
    };

    fn cuCtxSetCurrent(context: Handle) initialized || {
        let device = (context != 0).then(|| device_of(context)).transpose()?;
        board::pop();
        device.into_iter().for_each(board::push);
        Ok(())
    };

    fn cuCtxPushCurrent_v2(context: Handle) initialized || {
        board::push(device_of(context)?);
        Ok(())
    };

    fn cuCtxPopCurrent_v2(context: Out<Handle>) initialized || {
        let device = board::pop().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { context.give(handle(device)) }
    };

    fn cuCtxGetDevice(device: Out<c_int>) in_context |current| device.give(current as c_int);

    fn cuCtxSynchronize() in_context stream::wait_for_all;

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) in_context |_| {
        for (place, priority) in [(least, 0), (greatest, stream::GREATEST_PRIORITY)] {
            if !place.is_null() {
                place.give(priority)?;
            }
        }
        Ok(())
    };

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) in_context |device| {
        let peer = device_of(peer)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if peer == device {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let new = board().contexts[device].peers.insert(peer);
        if new { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    };

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) initialized || {
        let new = In::from(mode).read()?;
        if new > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        mode.give(CAPTURE_MODE.replace(new))
    };
}

thread_local! {
    /// Initially CU_STREAM_CAPTURE_MODE_GLOBAL. Nothing is ever captured, so the mode has no effect.
    static CAPTURE_MODE: std::cell::Cell<c_uint> = const { std::cell::Cell::new(0) };
}

/// Returns the handle of a device's primary context, which never changes.
pub(super) fn handle(device: usize) -> Handle {
    0xc000 + 16 * device
}

pub(super) fn device_of(context: Handle) -> Result<usize> {
    let device = (0..settings().devices).find(|device| handle(*device) == context);
    let device = device.ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    board().usable(device)?;
    Ok(device)
}
