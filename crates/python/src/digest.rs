//! Digests of large files.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use pyo3::prelude::*;

/// The bytes that are read between two calls of `stop`: a quarter of a second on a slow disk.
const BETWEEN_QUESTIONS: usize = 64 << 20;
/// The bytes of one read. More is not faster.
const AT_ONCE: usize = 1 << 20;

/// Returns the BLAKE3 digest of a file's contents, 32 bytes, or None if it was stopped. One thread reads and hashes
/// without the interpreter's lock.
///
/// Args:
///     path: the file.
///     stop: a function that is called after each 64 MiB; reading stops once it returns true.
///
/// Raises:
///     OSError: the file cannot be read.
#[pyfunction]
#[pyo3(signature = (path, *, stop = None))]
pub(crate) fn file_digest(
    py: Python<'_>,
    path: PathBuf,
    stop: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<[u8; 32]>> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; AT_ONCE];
    loop {
        if let Some(stop) = stop
            && stop.call0()?.is_truthy()?
        {
            return Ok(None);
        }
        let ended = py.detach(|| {
            let mut left = BETWEEN_QUESTIONS;
            while left > 0 {
                let read = match file.read(&mut buffer) {
                    Ok(0) => return Ok(true),
                    Ok(read) => read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                hasher.update(&buffer[..read]);
                left = left.saturating_sub(read);
            }
            Ok(false)
        })?;
        if ended {
            return Ok(Some(*hasher.finalize().as_bytes()));
        }
    }
}
