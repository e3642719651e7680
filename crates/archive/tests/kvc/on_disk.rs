//! Files whose payload is read later.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use transload_archive::kvc::{Head, KvcError, open_file, parse};

use crate::vectors;

#[test]
fn a_head_says_what_the_whole_file_says() {
    for kind in ["golden", "corrupt"] {
        for vector in vectors::all(kind) {
            let Some(file) = vector.file(kind) else {
                continue;
            };
            let mut disk = Cursor::new(&file);
            let head = Head::read(&mut disk).unwrap();
            let (head, whole) = (head.info(), parse(&file));
            assert_eq!(head, whole.clone().map(|kvc| kvc.info), "{}", vector.name);
            let (Ok(info), Ok(whole)) = (head, whole) else {
                continue;
            };
            let sum = info.sum_payload(&mut disk, |_| {}).unwrap();
            assert_eq!(info.check_payload(&sum), whole.verify(None), "{}", vector.name);
        }
    }
}

/// A file of the given length with zeroes after its known start.
struct Sparse {
    start: Vec<u8>,
    len: u64,
    at: u64,
    read: u64,
}

impl Read for Sparse {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = (self.len - self.at).min(buffer.len() as u64) as usize;
        for (byte, at) in buffer[..len].iter_mut().zip(self.at as usize..) {
            *byte = self.start.get(at).copied().unwrap_or(0);
        }
        self.at += len as u64;
        self.read += len as u64;
        Ok(len)
    }
}

impl Seek for Sparse {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(0) => self.len,
            _ => unreachable!(),
        };
        Ok(self.at)
    }
}

#[test]
fn no_more_is_read_than_stands_before_the_payload() {
    let golden = vectors::all("golden").swap_remove(0);
    let mut start = golden.file("golden").unwrap();
    let payload = 1_u64 << 40;
    start[40..48].copy_from_slice(&payload.to_le_bytes());
    start[56..64].copy_from_slice(&payload.to_le_bytes());
    let len = 228 + payload;
    let (at, read) = (0, 0);
    let mut disk = Sparse { start, len, at, read };
    let head = Head::read(&mut disk).unwrap();
    assert_eq!(head.info().unwrap().payload_length, payload);
    assert_eq!(head.file_len(), len);
    assert!(disk.read <= 228, "{} bytes were read", disk.read);
}

#[test]
fn a_payload_that_was_cut_meanwhile_is_noticed() {
    let golden = vectors::all("golden").swap_remove(0);
    let file = golden.file("golden").unwrap();
    let head = Head::read(&mut Cursor::new(&file)).unwrap();
    let info = head.info().unwrap();
    let sum = info.sum_payload(&mut Cursor::new(&file[..250]), |_| {}).unwrap();
    let (end, len) = (256, 250);
    assert_eq!(info.check_payload(&sum), Err(KvcError::Truncated { end, len }));
}

/// Opening a pipe must not wait for a writer.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.kvc");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_path(), dir.path()] {
        let error = open_file(path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}
