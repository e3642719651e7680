//! A connection to a server, made by the `redis` crate.
//!
//! Each reply has a time limit. The crate applies it to each `read`, so a server that sends a byte now and then can
//! hold a call longer; a silent one cannot.

use std::fmt;
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError, TlsCertificates,
};

use super::address::{Address, RedisOptions};
use super::failure::Failure;
use super::reply::{self, Reply, unexpected};

#[derive(Debug)]
pub(super) struct Connector {
    address: Address,
    options: RedisOptions,
    client: Client,
}

impl Connector {
    pub(super) fn new(address: Address, options: RedisOptions) -> Result<Self, Failure> {
        let fail = |error| Failure::from(error, options.connect_timeout);
        if address.tls {
            // The crate uses the process's default provider and panics if there is none. It does not matter if another
            // thread installs one first.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let info = info(&address, &options).map_err(fail)?;
        let client = match &options.ca_file {
            Some(file) if address.tls => {
                let wrong = |why: &dyn fmt::Display| Failure::Authorities {
                    file: file.display().to_string(),
                    why: why.to_string(),
                };
                let pem = std::fs::read(file).map_err(|error| wrong(&error))?;
                // Without any certificate, later errors would not mention the file.
                if !pem.windows(PEM.len()).any(|window| window == PEM) {
                    return Err(wrong(&"there is no certificate in it"));
                }
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem) })
                    .map_err(|error| wrong(&error))?
            }
            _ => Client::open(info).map_err(fail)?,
        };
        Ok(Self { address, options, client })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        let began = Instant::now();
        let limit = self.options.connect_timeout;
        loop {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(Failure::TimedOut(limit));
            }
            match self.attempt(left) {
                // A server that was just started refuses commands while it loads its data.
                Err(Failure::Refused(why)) if why.starts_with("LOADING") && began.elapsed() + LOADING_PAUSE < limit => {
                    std::thread::sleep(LOADING_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn attempt(&self, limit: Duration) -> Result<Connection, Failure> {
        let inner = self
            .client
            .get_connection_with_timeout(limit)
            .map_err(|error| Failure::from(error, self.options.connect_timeout))?;
        let mut connection = Connection { inner, timeout: limit };
        // Check that the server accepts us: without a password the crate sends no command. All three go in one round
        // trip. `SELECT` is last, since a cluster and a Sentinel refuse it.
        let database = self.address.database.to_string();
        let words: [&[&[u8]]; 3] = [&[b"HELLO"], &[b"PING"], &[b"SELECT", database.as_bytes()]];
        let commands: Vec<u8> = words.iter().flat_map(|words| reply::command(words).get_packed_command()).collect();
        connection.send(&commands)?;
        let [hello, ping, select] = [connection.receive()?, connection.receive()?, connection.receive()?];
        serves(&hello)?;
        for (reply, expected) in [(ping, "PONG"), (select, "OK")] {
            match reply {
                Reply::Status(text) if text == expected => {}
                // Database 0 is selected at the start, so an error does not matter.
                Reply::Error(_) if expected == "OK" && self.address.database == 0 => {}
                Reply::Error(why) => return Err(Failure::Refused(why)),
                other => return Err(unexpected(&other)),
            }
        }
        connection.timeout = self.options.timeout;
        Ok(connection)
    }
}

/// Refuses a server whose reply to `HELLO` says that it cannot hold a store. Servers before Redis 6 have no `HELLO`; if
/// such a server is a cluster, the first save fails.
fn serves(hello: &Reply) -> Result<(), Failure> {
    let Reply::Array(items) = hello else {
        return Ok(());
    };
    let mode = items.chunks_exact(2).find_map(|pair| match (&pair[0], &pair[1]) {
        (Reply::Bulk(key), Reply::Bulk(mode)) if key == b"mode" => Some(mode.as_slice()),
        _ => None,
    });
    match mode {
        Some(b"cluster") => Err(Failure::Kind(CLUSTER)),
        Some(b"sentinel") => Err(Failure::Kind(SENTINEL)),
        _ => Ok(()),
    }
}

const CLUSTER: &str = "a node of a Redis Cluster, where a manifest and its chunks would lie on different servers; \
     give a single server, with or without replicas";

const SENTINEL: &str = "a Sentinel, which keeps no data; give the server that it watches, which \
     `SENTINEL get-master-addr-by-name NAME` tells";

/// The pause between two attempts while the server loads its data.
const LOADING_PAUSE: Duration = Duration::from_millis(50);

const PEM: &[u8] = b"-----BEGIN CERTIFICATE-----";

fn info(address: &Address, options: &RedisOptions) -> Result<ConnectionInfo, RedisError> {
    let (host, port) = (address.host.clone(), address.port);
    let server = if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = &address.user {
        // The crate logs in only with a password. A `nopass` user accepts any.
        login = login.set_username(user).set_password("");
    }
    if let Some(password) = &options.password {
        login = login.set_password(password);
    }
    Ok(server
        .into_connection_info()?
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(login))
}

pub(super) struct Connection {
    inner: redis::Connection,
    timeout: Duration,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn send(&mut self, commands: &[u8]) -> Result<(), Failure> {
        self.inner
            .set_write_timeout(Some(self.timeout))
            .and_then(|()| self.inner.set_read_timeout(Some(self.timeout)))
            .and_then(|()| self.inner.send_packed_command(commands))
            .map_err(|error| Failure::from(error, self.timeout))
    }

    pub(super) fn receive(&mut self) -> Result<Reply, Failure> {
        self.inner.recv_response().map_err(|error| Failure::from(error, self.timeout))?.try_into()
    }

    pub(super) fn call(&mut self, command: &Cmd) -> Result<Reply, Failure> {
        self.send(&command.get_packed_command())?;
        match self.receive()? {
            Reply::Error(why) => Err(Failure::Refused(why)),
            reply => Ok(reply),
        }
    }

    pub(super) fn ignore(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        match self.call(&reply::command(words)) {
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
