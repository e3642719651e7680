//! RESP2, the protocol of Redis: commands are arrays of byte strings, replies are one of five kinds.
//!
//! Replies are read with limits on their length, depth and line length, because what stands in a reply's
//! first line is whatever the other side says. A value is read from the socket straight into the memory it
//! is handed out in: values here have hundreds of kilobytes, and each copy more is measured.

use std::io::{self, Read};

use super::connection::Failure;

/// The longest string that Redis stores unless told otherwise (`proto-max-bulk-len`): 512 MiB.
pub(super) const MAX_BULK: usize = 512 << 20;

/// The longest line: errors and numbers.
const MAX_LINE: usize = 64 << 10;

/// The most items of an array. A page of a listing has about a thousand.
const MAX_ITEMS: usize = 1 << 20;

/// Arrays in arrays: a page of `SCAN` is two deep.
const MAX_DEPTH: usize = 4;

/// Appends a command.
pub(super) fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    head(out, b'*', args.len());
    for arg in args {
        head(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the first line of an array (`*`) or of a string (`$`).
pub(super) fn head(out: &mut Vec<u8>, kind: u8, len: usize) {
    out.push(kind);
    out.extend_from_slice(len.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`
    Status(String),
    /// `-ERR ...`: the server understood and refused.
    Error(String),
    /// `:1`
    Int(i64),
    /// A string, or nothing.
    Bulk(Option<Vec<u8>>),
    /// An array, or nothing.
    Array(Option<Vec<Reply>>),
}

/// Where replies come from.
pub(super) trait Source: Read {
    /// Called before a value of this many bytes is read, so that time limits can grow with it.
    fn expect(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// Reads replies, one after the other.
#[derive(Debug)]
pub(super) struct Reader<S> {
    pub(super) source: S,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

/// Small replies come many to a read; values go past this buffer except for their first bytes.
const BUFFER: usize = 16 << 10;

impl<S: Source> Reader<S> {
    pub(super) fn new(source: S) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER].into(),
            at: 0,
            end: 0,
        }
    }

    /// The next reply.
    ///
    /// # Errors
    /// Any of them leaves the connection useless.
    pub(super) fn reply(&mut self) -> Result<Reply, Failure> {
        // All strings of one reply together.
        let mut room = MAX_BULK + BUFFER;
        self.nested(0, &mut room)
    }

    fn nested(&mut self, depth: usize, room: &mut usize) -> Result<Reply, Failure> {
        let line = self.line()?;
        let Some((&kind, rest)) = line.split_first() else {
            return Err(garbage("an empty line"));
        };
        let text = || String::from_utf8_lossy(rest).into_owned();
        match kind {
            b'+' => Ok(Reply::Status(text())),
            b'-' => Ok(Reply::Error(text())),
            b':' => Ok(Reply::Int(int(rest)?)),
            b'$' => match length(rest, *room)? {
                None => Ok(Reply::Bulk(None)),
                Some(len) => {
                    *room -= len;
                    Ok(Reply::Bulk(Some(self.bulk(len)?)))
                }
            },
            b'*' => match length(rest, MAX_ITEMS)? {
                None => Ok(Reply::Array(None)),
                Some(_) if depth == MAX_DEPTH => Err(garbage("arrays nested too deep")),
                Some(len) => {
                    // Not `with_capacity(len)`: nothing has come yet.
                    let mut items = Vec::new();
                    for _ in 0..len {
                        // An item costs memory too, also an empty one.
                        *room = room
                            .checked_sub(size_of::<Reply>())
                            .ok_or_else(|| garbage("a reply that is too long"))?;
                        items.push(self.nested(depth + 1, room)?);
                    }
                    Ok(Reply::Array(Some(items)))
                }
            },
            other => Err(garbage(format!("a reply of kind 0x{other:02x}"))),
        }
    }

    /// The bytes of a line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, Failure> {
        let mut line = Vec::new();
        loop {
            let seen = &self.buffer[self.at..self.end];
            match seen.iter().position(|&byte| byte == b'\n') {
                Some(newline) => {
                    line.extend_from_slice(&seen[..newline]);
                    self.at += newline + 1;
                    return match line.pop() {
                        Some(b'\r') => Ok(line),
                        _ => Err(garbage("a line without a carriage return")),
                    };
                }
                None => {
                    line.extend_from_slice(seen);
                    if line.len() > MAX_LINE {
                        return Err(garbage("a line that does not end"));
                    }
                    self.fill()?;
                }
            }
        }
    }

    /// `len` bytes and the end of line behind them.
    fn bulk(&mut self, len: usize) -> Result<Vec<u8>, Failure> {
        self.source.expect(len);
        let buffered = len.min(self.end - self.at);
        // Zeroed pages that nothing touches before the socket does.
        let mut data = vec![0; len];
        data[..buffered].copy_from_slice(&self.buffer[self.at..self.at + buffered]);
        self.at += buffered;
        read_exact(&mut self.source, &mut data[buffered..])?;
        for expected in *b"\r\n" {
            if self.at == self.end {
                self.fill()?;
            }
            if self.buffer[self.at] != expected {
                return Err(garbage("a value that is longer than its length"));
            }
            self.at += 1;
        }
        Ok(data)
    }

    /// Reads once into the buffer, which is empty.
    fn fill(&mut self) -> Result<(), Failure> {
        self.at = 0;
        self.end = 0;
        self.end = read_some(&mut self.source, &mut self.buffer)?;
        Ok(())
    }
}

fn read_exact(source: &mut impl Read, mut into: &mut [u8]) -> Result<(), Failure> {
    while !into.is_empty() {
        let read = read_some(source, into)?;
        into = &mut into[read..];
    }
    Ok(())
}

/// At least one byte.
fn read_some(source: &mut impl Read, into: &mut [u8]) -> Result<usize, Failure> {
    loop {
        match source.read(into) {
            Ok(0) => return Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Io(error)),
        }
    }
}

/// A length: -1 is none.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, Failure> {
    match int(text)? {
        -1 => Ok(None),
        len => match usize::try_from(len) {
            Ok(len) if len <= most => Ok(Some(len)),
            _ => Err(garbage(format!("a length of {len}"))),
        },
    }
}

fn int(text: &[u8]) -> Result<i64, Failure> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| garbage("a number that is none"))
}

fn garbage(what: impl Into<String>) -> Failure {
    Failure::Garbage(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Source for &[u8] {}

    fn parse(bytes: &[u8]) -> Result<Reply, Failure> {
        Reader::new(bytes).reply()
    }

    #[test]
    fn reads_each_kind() {
        let replies =
            b"+OK\r\n-ERR no\r\n:-3\r\n$-1\r\n$0\r\n\r\n$3\r\na\r\n\r\n*-1\r\n*2\r\n:1\r\n*0\r\n";
        let mut reader = Reader::new(&replies[..]);
        for expected in [
            Reply::Status("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Int(-3),
            Reply::Bulk(None),
            Reply::Bulk(Some(vec![])),
            Reply::Bulk(Some(b"a\r\n".to_vec())),
            Reply::Array(None),
            Reply::Array(Some(vec![Reply::Int(1), Reply::Array(Some(vec![]))])),
        ] {
            assert_eq!(reader.reply().unwrap(), expected);
        }
        assert!(matches!(reader.reply(), Err(Failure::Io(_))));
    }

    #[test]
    fn what_a_hostile_server_says_takes_no_memory() {
        for reply in [
            &b"$9223372036854775807\r\n"[..],
            b"$536887297\r\n",
            b"$-2\r\n",
            b"$x\r\n",
            b"*1048577\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b"$1\r\nabc",
            b"+OK\n",
            b"%1\r\n",
            b"\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
        ] {
            let error = parse(reply).unwrap_err();
            assert!(matches!(error, Failure::Garbage(_)), "{error:?}");
        }
        assert!(matches!(
            parse(&vec![b'+'; 1 << 20]).unwrap_err(),
            Failure::Garbage(_)
        ));
    }

    /// As the reference client understands it.
    fn same(ours: &Reply, theirs: &::redis::Value) -> bool {
        use ::redis::Value;
        match (ours, theirs) {
            (Reply::Status(text), Value::Okay) => text == "OK",
            (Reply::Status(text), Value::SimpleString(other)) => text == other,
            (Reply::Error(_), Value::ServerError(_)) => true,
            (Reply::Int(int), Value::Int(other)) => int == other,
            (Reply::Bulk(None) | Reply::Array(None), Value::Nil) => true,
            (Reply::Bulk(Some(data)), Value::BulkString(other)) => data == other,
            (Reply::Array(Some(items)), Value::Array(others)) => {
                items.len() == others.len() && items.iter().zip(others).all(|(a, b)| same(a, b))
            }
            _ => false,
        }
    }

    fn encoded() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            "[a-zA-Z ]{0,20}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            "[A-Z]{1,5} [a-z ]{0,20}".prop_map(|text| format!("-{text}\r\n").into_bytes()),
            any::<i64>().prop_map(|int| format!(":{int}\r\n").into_bytes()),
            Just(b"$-1\r\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..40_000).prop_map(|data| {
                let mut out = Vec::new();
                head(&mut out, b'$', data.len());
                [out, data, b"\r\n".to_vec()].concat()
            }),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(|items| {
                let mut out = Vec::new();
                head(&mut out, b'*', items.len());
                [out, items.concat()].concat()
            })
        })
    }

    proptest! {
        #[test]
        fn agrees_with_the_reference_client(bytes in encoded()) {
            let ours = parse(&bytes).unwrap();
            let theirs = ::redis::parse_redis_value(&bytes).unwrap();
            prop_assert!(same(&ours, &theirs), "{:?} {:?}", ours, theirs);
        }

        #[test]
        fn commands_are_arrays_of_strings(
            args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..5)
        ) {
            let mut out = Vec::new();
            command(&mut out, &args.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let expected = args.into_iter().map(|arg| Reply::Bulk(Some(arg))).collect();
            prop_assert_eq!(parse(&out).unwrap(), Reply::Array(Some(expected)));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(
            prop_oneof![prop::sample::select(b"+-:$*0123456789\r\n".to_vec()), any::<u8>()], 0..200
        )) {
            let mut reader = Reader::new(&bytes[..]);
            while reader.reply().is_ok() {}
        }
    }
}
