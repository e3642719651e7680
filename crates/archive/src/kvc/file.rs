//! Reading a file on disk whose payload need not fit into memory, and its one field that changes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::error::KvcError;
use super::parse::{FIXED, Info, PayloadSum};

/// Bytes of one read while a payload is summed: more brings nothing (CRC32C of 1 MiB takes 0.05 ms).
const PIECE: usize = 1 << 20;

/// Where hit_count stands.
const HIT_COUNT: u64 = 12;

/// What stands before the payload of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: Vec<u8>,
    file_len: u64,
}

/// Opens a file to read it, and waits for nobody: a pipe or a device, which has no end that could be known
/// before, is refused.
///
/// # Errors
/// Those of opening, and [`io::ErrorKind::InvalidInput`] if it is no regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_regular(path, OpenOptions::new().read(true))
}

fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Without this, opening a pipe waits for its other end. Regular files do not know it.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

impl Head {
    /// Reads no more than header, prompt and TLVs, as far as they are there. Memory grows with what is
    /// read and not with what a length in the file claims.
    ///
    /// # Errors
    /// Those of reading; what is read may be anything: see [`info`](Self::info).
    pub fn read(file: &mut (impl Read + Seek)) -> io::Result<Self> {
        let mut file_len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut bytes = Vec::new();
        let mut wanted = FIXED as u64 + 4;
        // The fixed part with the prompt's length; the prompt with the TLVs' length; the TLVs.
        for last in [false, false, true] {
            let missing = wanted.min(file_len) - bytes.len() as u64;
            let read = file.by_ref().take(missing).read_to_end(&mut bytes)?;
            if (read as u64) < missing {
                // It was cut while being read.
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

    /// What it says.
    ///
    /// # Errors
    /// The first thing that is wrong; CRC and key are not looked at.
    pub fn info(&self) -> Result<Info<'_>, KvcError> {
        Info::parse(&self.bytes, self.file_len)
    }

    /// The file's length in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }
}

impl Info<'_> {
    /// Reads the payload out of the file, piece by piece; `progress` is told how many bytes were read.
    ///
    /// # Errors
    /// Those of reading. Whether it is the payload that was saved says [`check_payload`](Self::check_payload).
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

/// Writes the hit count of a file in place, as erllama does after each load.
///
/// One write of four bytes that never cross a sector: a reader and a crash see the old count or the new
/// one. It is not flushed, and of two processes that count at the same time the later one wins: the count
/// is for choosing what to evict, and neither CRC nor key cover it.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] with a [`KvcError`] inside if the file's head is wrong, in which case
/// nothing is written; otherwise those of [`open_file`], reading and writing.
pub fn set_hit_count(path: &Path, hit_count: u32) -> io::Result<()> {
    let mut file = open_regular(path, OpenOptions::new().read(true).write(true))?;
    let head = Head::read(&mut file)?;
    head.info().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    file.write_all_at(&hit_count.to_le_bytes(), HIT_COUNT)
}
