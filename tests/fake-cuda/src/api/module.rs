//! Modules, their functions, launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::board::{Function, Handle, board};
use crate::code::*;
use crate::entry::{In, Out, driver};
use crate::faults;
use crate::kernel::Entry;
use crate::stream;

/// The most threads of a block: the launch bounds of our kernels.
const MOST_THREADS: c_int = 256;

driver! {
    fn cuModuleLoadData(module: Out<Handle>, image: In<c_char>) allocating |device| load(device, module, image);

    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: In<c_char>, _count: c_uint, _options: In<c_uint>, _values: In<usize>
    ) allocating |device| load(device, module, image);

    fn cuModuleUnload(module: Handle) in_context |_| {
        let mut board = board();
        board.functions.retain(|_, function| function.module != module);
        board.modules.remove(&module).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    };

    fn cuModuleGetFunction(made: Out<Handle>, module: Handle, name: In<c_char>) allocating |_| {
        let mut board = board();
        let device = *board.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let entry = Entry::named(text(name)?).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let handle = board.handle();
        made.give(handle)?;
        board.functions.insert(handle, Function { device, module, entry });
        Ok(())
    };

    // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK and NUM_REGS; all other attributes of our kernels are 0.
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) in_context |_| {
        board().functions.get(&function).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        value.give(match attribute {
            0 => MOST_THREADS,
            4 => 32,
            _ => 0,
        })
    };

    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        _shared: c_uint, stream: Handle, parameters: In<*const u8>, extra: In<*const c_void>
    ) in_context |device| {
        let mut board = board();
        let function = *board.functions.get(&function).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let line = stream::resolve(&mut board, device, stream)?;
        if board.lines[&line].device != function.device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        // Our kernels use one-dimensional grids and blocks.
        let row = [grid_y, grid_z, block_y, block_z].iter().all(|count| *count == 1);
        let threads = grid_x.checked_mul(block_x).filter(|threads| *threads > 0 && row && block_x <= MOST_THREADS as u32);
        let threads = threads.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let parameter = parameters.read()?;
        if parameter.is_null() || !extra.pointer().is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        faults::count(function.entry.name())?;
        // SAFETY: the caller of the driver says that this is the kernel's parameter.
        let parameter = unsafe { function.entry.parameter(parameter) };
        let (entry, device) = (function.entry, function.device);
        let work = Box::new(move |random: &mut _| entry.run(device, parameter, threads, random));
        stream::enqueue(&mut board, line, Vec::new(), work);
        Ok(())
    };
}

fn load(device: usize, module: Out<Handle>, image: In<c_char>) -> Result {
    let image = text(image)?;
    let known = [".entry walk_16", ".entry fold", ".entry spin"];
    if !known.iter().any(|entry| image.contains(entry)) {
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    let mut board = board();
    let handle = board.handle();
    module.give(handle)?;
    board.modules.insert(handle, device);
    Ok(())
}

/// Reads a caller's text, which is valid for the duration of the call.
fn text<'call>(of: In<c_char>) -> Result<&'call str> {
    of.read()?;
    // SAFETY: it is not null, and the caller of the driver says that it ends with NUL.
    let text = unsafe { CStr::from_ptr(of.pointer()) };
    text.to_str().map_err(|_| CUDA_ERROR_INVALID_IMAGE)
}
