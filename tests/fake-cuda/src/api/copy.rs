//! Copies and fills.

use std::ffi::c_uchar;

use super::context::device_of;
use crate::board::Handle;

use crate::code::*;
use crate::copy::{self, Return};
use crate::entry::{In, Out, driver};
use crate::memory;

driver! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, size: usize, stream: Handle) in_context |device| {
        copy::to_device(device, to, from, size, stream, Return::Early)
    };

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, size: usize, stream: Handle) in_context |device| {
        copy::to_host(device, to, from, size, stream, Return::Early)
    };

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) in_context |device| {
        copy::between(device, to, from, size, stream)
    };

    fn cuMemcpyPeerAsync(
        to: u64, to_context: Handle, from: u64, from_context: Handle, size: usize, stream: Handle
    ) in_context |device| {
        device_of(to_context)?;
        device_of(from_context)?;
        copy::between(device, to, from, size, stream)
    };

    // A function of CUDA 12.8. Its attributes do not matter here, where all memory is the driver's.
    fn cuMemcpyBatchAsync(
        to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, attributes: In<u8>, first: In<usize>,
        attribute_count: usize, _failed: Out<usize>, stream: Handle
    ) in_context |device| {
        attributes.read()?;
        // The NULL streams are refused.
        if count == 0 || attribute_count == 0 || first.read()? != 0 || stream <= 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        (0..count).try_for_each(|n| {
            copy::between(device, to.nth(n).read()?, from.nth(n).read()?, sizes.nth(n).read()?, stream)
        })
    };

    fn cuMemcpyHtoD_v2(to: u64, from: usize, size: usize) in_context |device| {
        copy::to_device(device, to, from, size, 0, Return::Late)
    };

    fn cuMemcpyDtoH_v2(to: usize, from: u64, size: usize) in_context |device| {
        copy::to_host(device, to, from, size, 0, Return::Late)
    };

    fn cuMemsetD8Async(to: u64, byte: c_uchar, size: usize, stream: Handle) in_context |device| {
        copy::fill(device, to, byte, size, stream, false)
    };

    // It waits only if it fills host memory.
    fn cuMemsetD8_v2(to: u64, byte: c_uchar, size: usize) in_context |device| {
        let host = memory::read().at(to).is_some_and(|(_, region)| region.is_host());
        copy::fill(device, to, byte, size, 0, host)
    };
}
