//! One connection to a server: TCP or TLS, with a time limit on each exchange as a whole.
//!
//! A limit per `read` would let a server that sends a byte now and then hold a call for ever.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::address::{Address, RedisOptions};
use super::resp::{self, Reader, Reply, Source};
use crate::error::StoreError;

/// Why an exchange failed. After any of them but [`Refused`](Self::Refused) the connection is useless.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The connection broke, or could not be made.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The server did not answer in time.
    #[error("the server did not answer within {0:?}")]
    TimedOut(Duration),
    /// What came is not the protocol of Redis, or not an answer to what was asked.
    #[error("the server answered {0}; is it a Redis server?")]
    Garbage(String),
    /// The server understood and refused.
    #[error("the server refused: {0}")]
    Refused(String),
    /// TLS cannot begin.
    #[error("TLS: {0}")]
    Tls(String),
}

impl Failure {
    /// Whether a new connection may do better: this one was closed under us.
    pub(super) fn is_broken(&self) -> bool {
        use io::ErrorKind::*;
        match self {
            Self::Io(error) => matches!(
                error.kind(),
                UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected
            ),
            _ => false,
        }
    }

    pub(super) fn during(self, action: impl Into<String>) -> StoreError {
        StoreError::remote(action, self)
    }
}

/// Makes connections to one server.
#[derive(Debug)]
pub(super) struct Connector {
    address: Address,
    options: RedisOptions,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Connector {
    /// Reads the certificates, where there is TLS.
    pub(super) fn new(address: Address, options: RedisOptions) -> Result<Self, Failure> {
        let tls = if address.tls {
            let name = ServerName::try_from(address.host.clone())
                .map_err(|_| Failure::Tls(format!("`{}` is not a server's name", address.host)))?;
            Some((Arc::new(client_config(&options)?), name))
        } else {
            None
        };
        Ok(Self {
            address,
            options,
            tls,
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// A connection that is logged in and has its database chosen.
    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        let deadline = Instant::now() + self.options.connect_timeout;
        loop {
            match self.attempt(deadline) {
                // A server that was just started answers while it reads its data, and soon well.
                Err(Failure::Refused(why))
                    if why.starts_with("LOADING") && Instant::now() + LOADING_PAUSE < deadline =>
                {
                    std::thread::sleep(LOADING_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn attempt(&self, deadline: Instant) -> Result<Connection, Failure> {
        let limit = self.options.connect_timeout;
        let tcp = self.dial(deadline)?;
        let stream = match &self.tls {
            None => Stream::Plain(tcp),
            Some((config, name)) => {
                let session = ClientConnection::new(config.clone(), name.clone())
                    .map_err(|error| Failure::Tls(error.to_string()))?;
                Stream::Tls(Box::new(StreamOwned::new(session, tcp)))
            }
        };
        let mut connection = Connection {
            reader: Reader::new(Timed {
                stream,
                deadline,
                limit,
            }),
            timeout: self.options.timeout,
        };
        let mut hello = Vec::new();
        let mut replies = 1;
        if let Some(password) = &self.options.password {
            let user = self.address.user.as_deref();
            let mut args = vec![&b"AUTH"[..]];
            args.extend(user.map(str::as_bytes));
            args.push(password.as_bytes());
            resp::command(&mut hello, &args);
            replies += 1;
        }
        let database = self.address.database.to_string();
        resp::command(&mut hello, &[b"SELECT", database.as_bytes()]);
        connection.send_before(&mut [IoSlice::new(&hello)], deadline)?;
        for _ in 0..replies {
            match connection
                .reader
                .reply()
                .map_err(|e| connection.explain(e))?
            {
                Reply::Status(ok) if ok == "OK" => {}
                Reply::Error(why) => return Err(Failure::Refused(why)),
                other => return Err(unexpected(&other)),
            }
        }
        connection.reader.source.limit = self.options.timeout;
        Ok(connection)
    }

    fn dial(&self, deadline: Instant) -> Result<TcpStream, Failure> {
        let host = (self.address.host.as_str(), self.address.port);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in host.to_socket_addrs().map_err(Failure::Io)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::TimedOut(self.options.connect_timeout));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(tcp) => {
                    tcp.set_nodelay(true).map_err(Failure::Io)?;
                    return Ok(tcp);
                }
                Err(error) => last = error,
            }
        }
        Err(match last.kind() {
            io::ErrorKind::TimedOut => Failure::TimedOut(self.options.connect_timeout),
            _ => Failure::Io(last),
        })
    }
}

/// Between two questions to a server that is reading its data.
const LOADING_PAUSE: Duration = Duration::from_millis(50);

/// The slowest transfer of a large value that is not taken for a stall, in bytes per second.
const SLOWEST: usize = 1 << 20;

fn client_config(options: &RedisOptions) -> Result<ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        Some(file) => {
            let wrong = |error: &dyn std::fmt::Display| {
                Failure::Tls(format!("cannot read {}: {error}", file.display()))
            };
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"there is no certificate in it"));
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            // Some of a system's certificates are always odd.
            roots.add_parsable_certificates(system.certs);
            if roots.is_empty() {
                let why = system.errors.iter().map(|error| format!(": {error}"));
                return Err(Failure::Tls(format!(
                    "this system has no certificate authorities{}; name a file in {}",
                    why.collect::<String>(),
                    super::address::CA_FILE
                )));
            }
        }
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Tls(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Connection {
    reader: Reader<Timed>,
    timeout: Duration,
}

impl Connection {
    /// Begins an exchange: writes `parts`, which hold whole commands.
    pub(super) fn send(&mut self, parts: &mut [IoSlice<'_>]) -> Result<(), Failure> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let deadline = Instant::now() + self.timeout + transfer(bytes);
        self.send_before(parts, deadline)
    }

    fn send_before(
        &mut self,
        mut parts: &mut [IoSlice<'_>],
        deadline: Instant,
    ) -> Result<(), Failure> {
        self.reader.source.deadline = deadline;
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.reader.source.write_vectored(parts) {
                Ok(0) => return Err(Failure::Io(io::ErrorKind::WriteZero.into())),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.explain(Failure::Io(error))),
            }
        }
        self.reader
            .source
            .flush()
            .map_err(|error| self.explain(Failure::Io(error)))
    }

    /// The next reply. Each has the whole time limit for itself.
    pub(super) fn receive(&mut self) -> Result<Reply, Failure> {
        self.reader.source.deadline = Instant::now() + self.timeout;
        self.reader.reply().map_err(|error| self.explain(error))
    }

    /// One command and its reply.
    pub(super) fn call(&mut self, args: &[&[u8]]) -> Result<Reply, Failure> {
        let mut out = Vec::new();
        resp::command(&mut out, args);
        self.send(&mut [IoSlice::new(&out)])?;
        match self.receive()? {
            Reply::Error(why) => Err(Failure::Refused(why)),
            reply => Ok(reply),
        }
    }

    /// One command whose reply does not matter.
    pub(super) fn ignore(&mut self, args: &[&[u8]]) -> Result<(), Failure> {
        match self.call(args) {
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// What the system calls by the same names.
    fn explain(&self, failure: Failure) -> Failure {
        use io::ErrorKind::*;
        match failure {
            Failure::Io(error) => match error.kind() {
                WouldBlock | TimedOut => Failure::TimedOut(self.reader.source.limit),
                // rustls wraps its own errors.
                InvalidData => Failure::Tls(error.to_string()),
                _ => Failure::Io(error),
            },
            other => other,
        }
    }
}

/// The error for a reply that does not answer what was asked.
pub(super) fn unexpected(reply: &Reply) -> Failure {
    Failure::Garbage(match reply {
        Reply::Status(text) | Reply::Error(text) => {
            format!("`{}`", text.chars().take(80).collect::<String>())
        }
        Reply::Int(int) => format!("the number {int}"),
        Reply::Bulk(_) => "a string in an unexpected place".into(),
        Reply::Array(_) => "an array in an unexpected place".into(),
    })
}

fn transfer(bytes: usize) -> Duration {
    Duration::from_secs((bytes / SLOWEST) as u64)
}

/// A stream whose reads and writes end at a deadline.
#[derive(Debug)]
struct Timed {
    stream: Stream,
    deadline: Instant,
    /// What the deadline came from, for the message.
    limit: Duration,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Timed {
    /// Sets the socket's limits to what is left.
    fn arm(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let tcp = match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref(),
        };
        tcp.set_read_timeout(Some(left))?;
        // TLS writes in its handshake's reads and the other way round.
        tcp.set_write_timeout(Some(left))
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.read(into),
            Stream::Tls(tls) => tls.read(into),
        }
    }
}

impl Source for Timed {
    fn expect(&mut self, bytes: usize) {
        self.deadline += transfer(bytes);
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.arm()?;
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.write_vectored(parts),
            Stream::Tls(tls) => tls.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.arm()?;
        match &mut self.stream {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(tls) => tls.flush(),
        }
    }
}
