//! Reading of a file whose payload need not fit into memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::KvcError;
use super::parse::{FIXED, Info, PayloadSum};

/// The bytes of one read while a payload is summed. More is no faster (CRC32C of 1 MiB takes 0.05 ms).
const PIECE: usize = 1 << 20;

/// The part of a file in front of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: Vec<u8>,
    file_len: u64,
}

/// Opens a file for reading, without blocking. Pipes and devices are refused, since they have no known length.
///
/// # Errors
/// Errors of opening, and [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    // Without this flag, opening a pipe waits for its other end. It does not affect regular files.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

impl Head {
    /// Reads the header, the prompt and the TLVs, as far as they exist. Memory grows with what is read, not with the
    /// lengths that the file claims.
    ///
    /// # Errors
    /// Errors of reading. The content is not checked; see [`info`](Self::info).
    pub fn read(file: &mut (impl Read + Seek)) -> io::Result<Self> {
        let mut file_len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut bytes = Vec::new();
        let mut wanted = FIXED as u64 + 4;
        // First the fixed part with the prompt's length, then the prompt with the TLVs' length, then the TLVs.
        for last in [false, false, true] {
            let missing = wanted.min(file_len) - bytes.len() as u64;
            let read = file.by_ref().take(missing).read_to_end(&mut bytes)?;
            if (read as u64) < missing {
                // The file was truncated meanwhile.
                file_len = bytes.len() as u64;
            }
            let Some(len) = bytes.last_chunk().filter(|_| wanted <= file_len && !last) else {
                break;
            };
            let then = if wanted == FIXED as u64 + 4 { 4 } else { 0 };
            wanted += u64::from(u32::from_le_bytes(*len)) + then;
        }
        Ok(Self { bytes, file_len })
    }

    /// Parses the head.
    ///
    /// # Errors
    /// The first error found. CRC and key are not checked.
    pub fn info(&self) -> Result<Info<'_>, KvcError> {
        Info::parse(&self.bytes, self.file_len)
    }

    /// Returns the file's length in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }
}

impl Info<'_> {
    /// Reads the payload in pieces and sums it. Calls `progress` with the number of bytes read.
    ///
    /// # Errors
    /// Errors of reading. [`check_payload`](Self::check_payload) then tells whether it is the payload that was saved.
    pub fn sum_payload(&self, file: &mut (impl Read + Seek), mut progress: impl FnMut(u64)) -> io::Result<PayloadSum> {
        file.seek(SeekFrom::Start(self.payload_offset))?;
        let mut sum = PayloadSum::new();
        let mut piece = vec![0; PIECE];
        let mut payload = file.by_ref().take(self.payload_length);
        loop {
            match payload.read(&mut piece) {
                Ok(0) => return Ok(sum),
                Ok(len) => {
                    sum.update(&piece[..len]);
                    progress(sum.bytes());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
