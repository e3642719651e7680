//! The measured proxies. Each is a separate process with its configuration in a temporary folder.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fakes::Fakes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The fakes themselves.
    Direct,
    Sidecar,
    /// `transload proxy`, configured so that every prompt is too short for a prefill server.
    ProxyPass,
    Proxy,
    Nginx,
    Haproxy,
    /// vLLM's example proxy.
    Python,
}

impl Peer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Sidecar => "sidecar",
            Self::ProxyPass | Self::Proxy => "proxy",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Python => "vLLM's",
        }
    }
}

pub(crate) struct Programs {
    pub(crate) transload: PathBuf,
    pub(crate) nginx: Option<PathBuf>,
    pub(crate) haproxy: Option<PathBuf>,
    /// A Python with fastapi, uvicorn and httpx, and vLLM's script.
    pub(crate) python: Option<(PathBuf, PathBuf)>,
}

/// A running peer, which is stopped when this is dropped.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    pub(crate) at: SocketAddr,
    process: Option<Child>,
    /// The folder with its configuration.
    _folder: tempfile::TempDir,
}

impl Running {
    /// Starts a peer in front of the fakes and waits until it accepts connections. Returns `None` if it is not
    /// installed.
    pub(crate) fn start(peer: Peer, programs: &Programs, fakes: Fakes) -> io::Result<Option<Self>> {
        let folder = tempfile::tempdir()?;
        let at = match peer {
            Peer::Direct => fakes.decode,
            _ => free()?,
        };
        let Some(process) = command(peer, programs, fakes, at, folder.path())? else {
            return Ok(None);
        };
        let process = match process {
            None => None,
            Some(mut command) => {
                let log = fs::File::create(folder.path().join("log"))?;
                command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
                Some(command.spawn()?)
            }
        };
        let mut running = Self { peer, at, process, _folder: folder };
        running.wait()?;
        Ok(Some(running))
    }

    fn wait(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.at).is_err() {
            let ended = match &mut self.process {
                Some(process) => process.try_wait()?.is_some(),
                None => true,
            };
            if ended || start.elapsed() > Duration::from_secs(30) {
                let log = fs::read_to_string(self._folder.path().join("log"));
                return Err(io::Error::other(format!(
                    "{} does not start: {}",
                    self.peer.name(),
                    log.unwrap_or_default()
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the resident memory of it and its workers, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.sum(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
            Some(kib * 1024)
        })
    }

    /// Returns the processor time that it and its workers have used.
    pub(crate) fn busy(&self) -> Duration {
        let ticks = self.sum(|pid| {
            let stat = stat(pid)?;
            Some(stat.get(11)?.parse::<u64>().ok()? + stat.get(12)?.parse::<u64>().ok()?)
        });
        Duration::from_secs(1) * u32::try_from(ticks).unwrap_or(u32::MAX)
            / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
    }

    fn sum(&self, of: impl Fn(u32) -> Option<u64>) -> u64 {
        let Some(process) = &self.process else {
            return 0;
        };
        let workers = processes().filter(|pid| {
            stat(*pid).is_some_and(|stat| stat.get(1).is_some_and(|parent| *parent == process.id().to_string()))
        });
        workers.chain([process.id()]).filter_map(of).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        // nginx's workers end with their master only where it is told.
        if let Some(pid) = rustix::process::Pid::from_raw(process.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        for _ in 0..100 {
            if !matches!(process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// Returns the fields of `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn free() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Returns the command to run: `Some(None)` if there is nothing to run, `None` if the program is not installed.
fn command(
    peer: Peer,
    programs: &Programs,
    fakes: Fakes,
    at: SocketAddr,
    folder: &Path,
) -> io::Result<Option<Option<Command>>> {
    let Fakes { prefill, decode } = fakes;
    let mut command;
    match peer {
        Peer::Direct => return Ok(Some(None)),
        Peer::Sidecar => {
            command = Command::new(&programs.transload);
            command.arg("sidecar").arg("--secure-proxy=false");
            command.args(["--port", &at.port().to_string()]);
            command.args(["--vllm-port", &decode.port().to_string()]);
            command.args(["--admin", &free()?.to_string()]);
        }
        Peer::Proxy | Peer::ProxyPass => {
            command = Command::new(&programs.transload);
            command.args(["proxy", "--listen", &at.to_string()]);
            command.args(["--prefill", &format!("http://{prefill}")]);
            command.args(["--decode", &format!("http://{decode}")]);
            command.args(["--admin", &free()?.to_string()]);
            if peer == Peer::ProxyPass {
                command.args(["--min-prompt", "1000000000"]);
            }
        }
        Peer::Nginx => {
            let Some(nginx) = &programs.nginx else {
                return Ok(None);
            };
            let file = folder.join("nginx.conf");
            fs::write(&file, nginx_conf(at, decode, folder))?;
            command = Command::new(nginx);
            command.arg("-p").arg(folder).arg("-c").arg(file);
            command.arg("-e").arg(folder.join("errors"));
        }
        Peer::Haproxy => {
            let Some(haproxy) = &programs.haproxy else {
                return Ok(None);
            };
            let file = folder.join("haproxy.cfg");
            fs::write(&file, haproxy_cfg(at, decode))?;
            command = Command::new(haproxy);
            command.arg("-f").arg(file);
        }
        Peer::Python => {
            let Some((python, script)) = &programs.python else {
                return Ok(None);
            };
            command = Command::new(python);
            command.arg(script).args(["--host", "127.0.0.1"]);
            command.args(["--port", &at.port().to_string()]);
            command.args(["--prefiller-hosts", "127.0.0.1", "--prefiller-ports"]);
            command.arg(prefill.port().to_string());
            command.args(["--decoder-hosts", "127.0.0.1", "--decoder-ports"]);
            command.arg(decode.port().to_string());
            // The servers are local, whatever proxy the environment names.
            command.env("NO_PROXY", "*");
        }
    }
    // Logging would be part of the measured time.
    command.env_remove("TRANSLOAD_LOG");
    Ok(Some(Some(command)))
}

/// Configures two workers that keep connections open and do not buffer.
fn nginx_conf(at: SocketAddr, decode: SocketAddr, folder: &Path) -> String {
    // If nginx is started by root, its workers would run as a user who cannot enter the folder.
    let user = match rustix::process::getuid().is_root() {
        true => "user root;",
        false => "",
    };
    let folder = folder.display();
    format!(
        "{user}
daemon off;
pid {folder}/pid;
worker_processes 2;
worker_rlimit_nofile 20000;
events {{ worker_connections 16000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream decode {{
        server {decode};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {at} backlog=4096;
        location / {{
            proxy_pass http://decode;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"
    )
}

/// Configures two threads that keep connections open.
fn haproxy_cfg(at: SocketAddr, decode: SocketAddr) -> String {
    format!(
        "global
    nbthread 2
    maxconn 9000
defaults
    mode http
    http-reuse always
    option http-no-delay
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend clients
    bind {at} backlog 4096
    default_backend decode
backend decode
    server decode {decode}
"
    )
}
