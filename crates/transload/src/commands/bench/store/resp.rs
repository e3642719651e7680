//! As little of a Redis client as there can be: commands one after the other down a socket, and their
//! answers out of it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
pub(super) struct Plain {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl Plain {
    pub(super) fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let to = TcpStream::connect(address)?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(PATIENCE))?;
        to.set_write_timeout(Some(PATIENCE))?;
        let from = BufReader::with_capacity(64 << 10, to.try_clone()?);
        Ok(Self { to, from })
    }

    /// One command and its answer.
    pub(super) fn ask(&mut self, command: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.send(command)?;
        self.answer()
    }

    /// Sends all commands, and then takes all answers. The answers to so many SETs fit into the socket.
    pub(super) fn pipeline<'a>(
        &mut self,
        commands: impl ExactSizeIterator<Item = Vec<&'a [u8]>>,
    ) -> io::Result<u64> {
        let count = commands.len();
        for command in commands {
            self.send(&command)?;
        }
        (0..count).try_fold(0, |bytes, _| {
            let answer = self.answer()?;
            Ok(bytes + std::hint::black_box(answer).len() as u64)
        })
    }

    fn send(&mut self, command: &[&[u8]]) -> io::Result<()> {
        // Heads are small and put together; values go as they are.
        let mut head = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            head.extend(format!("${}\r\n", part.len()).bytes());
            match part.len() {
                ..1024 => head.extend_from_slice(part),
                _ => {
                    self.to.write_all(&head)?;
                    self.to.write_all(part)?;
                    head.clear();
                }
            }
            head.extend(b"\r\n");
        }
        self.to.write_all(&head)
    }

    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let (kind, text) = line.split_at_checked(1).unwrap_or_default();
        let text = text.trim_end();
        let wrong = |said: &str| Err(io::Error::other(format!("the server said {said:?}")));
        match kind {
            "+" | ":" => Ok(text.as_bytes().to_vec()),
            "$" => {
                let Ok(len) = text.parse::<usize>() else {
                    return wrong(&line);
                };
                let mut value = vec![0; len];
                self.from.read_exact(&mut value)?;
                self.from.read_exact(&mut [0; 2])?;
                Ok(value)
            }
            _ => wrong(line.trim_end()),
        }
    }
}
