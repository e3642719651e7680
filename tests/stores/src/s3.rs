//! S3 servers of one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use transload_store::StoreError;
use transload_store::backend::s3::{S3Options, S3Store};

/// A server with a bucket `bucket`.
pub struct Server {
    dir: TempDir,
    pub port: u16,
    run: Run,
    lacks: Lacks,
    /// Keeps the port while no server listens there: no other process gets it, and it refuses connections.
    _port: TcpSocket,
}

enum Run {
    Stopped,
    S3s(Runtime),
    Moto(Child),
}

impl Server {
    /// s3s-fs, in threads of this process.
    pub fn s3s() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        let (held, port) = hold_port();
        let mut server = Self { dir, port, run: Run::Stopped, lacks: Lacks::default(), _port: held };
        server.start();
        server
    }

    /// Starts moto's server from `target/moto`, where `./test` installs it.
    pub fn moto() -> Option<Self> {
        let program = std::env::var_os("MOTO_SERVER").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/moto/bin/moto_server"),
            PathBuf::from,
        );
        if !program.exists() {
            println!("NOT RUN: there is no moto_server ({})", program.display());
            return None;
        }
        let (held, port) = hold_port();
        let child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            dir: tempfile::tempdir().unwrap(),
            port,
            run: Run::Moto(child),
            lacks: Lacks::default(),
            _port: held,
        };
        let began = Instant::now();
        while !server.make_bucket() {
            assert!(began.elapsed() < Duration::from_secs(60), "moto starts");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    fn make_bucket(&self) -> bool {
        self.raw_put("/bucket", b"")
    }

    /// Puts an object directly, without the store.
    pub fn put(&self, key: &str, content: &[u8]) {
        match &self.run {
            Run::Moto(_) => assert!(self.raw_put(&format!("/bucket/{key}"), content)),
            _ => {
                let file = self.file(key);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, content).unwrap();
            }
        }
    }

    /// moto believes any signature.
    fn raw_put(&self, path: &str, content: &[u8]) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0\r\nConnection: close\r\n\r\n",
            content.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(content).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok_and(|_| answer.contains(" 200 "))
    }

    /// Starts s3s-fs, on its port.
    pub fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(self.dir.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single("key", "secret"));
        builder.set_access(self.lacks.clone());
        let service = builder.build();
        let listener = runtime.block_on(async {
            let began = Instant::now();
            loop {
                match TcpListener::bind(("127.0.0.1", self.port)).await {
                    Ok(listener) => return listener,
                    Err(error) if began.elapsed() > Duration::from_secs(30) => panic!("{error}"),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        runtime.spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    continue;
                };
                // Its answers come in two writes, and without this 40 ms apart.
                let _ = socket.set_nodelay(true);
                let service = service.clone();
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        self.run = Run::S3s(runtime);
    }

    /// Stops the server abruptly: requests under way are dropped.
    pub fn kill(&mut self) {
        match std::mem::replace(&mut self.run, Run::Stopped) {
            Run::Stopped => {}
            Run::S3s(runtime) => runtime.shutdown_timeout(Duration::from_secs(5)),
            Run::Moto(mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Returns the environment with which another process can open these stores.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        environment(self.port)
    }

    pub fn options(&self) -> S3Options {
        options(&self.environment())
    }

    pub fn open(&self, rest: &str) -> S3Store {
        self.try_open(&format!("s3://bucket{rest}")).unwrap()
    }

    pub fn try_open(&self, uri: &str) -> Result<S3Store, StoreError> {
        S3Store::open(&uri.parse().unwrap(), self.options())
    }

    /// Starts s3s-fs again, as a server that does not know an operation and answers 501.
    pub fn restart_without(&mut self, operation: &'static str) {
        self.kill();
        self.lacks.operation = Some(operation);
        self.start();
    }

    /// Returns how often the operation that it lacks was asked for.
    pub fn refused(&self) -> usize {
        self.lacks.asked.load(Ordering::Relaxed)
    }

    /// Returns the file in which s3s-fs keeps an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.dir.path().join("bucket").join(key)
    }
}

/// An operation that a server does not support, and a count of the requests for it.
#[derive(Clone, Default)]
struct Lacks {
    operation: Option<&'static str>,
    asked: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl S3Access for Lacks {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> s3s::S3Result<()> {
        if Some(context.s3_op().name()) != self.operation {
            return Ok(());
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        Err(s3s::s3_error!(NotImplemented, "this server lacks it"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Binds a port without listening on it. The server can bind it as well, since both allow its reuse.
fn hold_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn environment(port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_ACCESS_KEY_ID", "key".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ("AWS_REGION", "us-east-1".into()),
    ]
}

fn options(environment: &[(&str, String)]) -> S3Options {
    let mut options = S3Options::default();
    for (key, value) in environment {
        options = options.with_config(key.to_ascii_lowercase(), value);
    }
    options.timeout = Duration::from_secs(20);
    options.retry = Duration::from_secs(1);
    options
}

/// A server that can lie about an object's first bytes and length.
pub struct Impostor {
    port: u16,
}

impl Impostor {
    pub fn start(answer: fn(&str) -> (Vec<u8>, u64)) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = serve(stream, answer);
            }
        });
        Self { port }
    }

    pub fn options(&self) -> S3Options {
        options(&environment(self.port))
    }
}

fn serve(mut stream: TcpStream, answer: fn(&str) -> (Vec<u8>, u64)) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut line = String::from("-");
    while line.trim() != "" {
        line.clear();
        request.read_line(&mut line)?;
    }
    let (bytes, size) = answer(first.split(' ').nth(1).unwrap_or_default());
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes 0-{}/{size}\r\n\
         ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n",
        bytes.len(),
        bytes.len() - 1
    )?;
    stream.write_all(&bytes)
}
