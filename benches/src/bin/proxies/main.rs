//! Compares `transload sidecar` and `transload proxy` with other proxies: the time that they add to an answer, their
//! throughput, and its cost. `cargo run --profile dist -p transload-benches --bin proxies -- --help`.
//!
//! Fake servers, which answer at once, and clients are two threads of this process; each proxy is a separate process.
//! Every figure is taken in turns, from the fakes directly and from each proxy, and compared within a round.

mod client;
mod fakes;
mod measure;
mod peers;
mod report;
mod wire;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::fakes::Fakes;
use crate::measure::{Case, Scale};
use crate::peers::{Peer, Programs, Running};
use crate::report::{Report, Table};

/// Compares `transload sidecar` and `transload proxy` with nginx, HAProxy and vLLM's example proxy.
#[derive(Parser)]
struct Arguments {
    /// The cases to measure. Default: all.
    #[arg(value_enum)]
    what: Vec<What>,
    /// The transload binary to measure.
    #[arg(long, value_name = "FILE", default_value = "target/dist/transload")]
    transload: PathBuf,
    /// vLLM's toy_proxy_server.py.
    #[arg(long, value_name = "FILE", env = "TRANSLOAD_BENCH_VLLM_PROXY")]
    vllm_proxy: Option<PathBuf>,
    /// A Python with fastapi, uvicorn and httpx, to run it.
    #[arg(long, value_name = "FILE", default_value = "python3", env = "TRANSLOAD_BENCH_PYTHON")]
    python: PathBuf,
    /// The number of measurements of each figure.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The duration of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The number of concurrent streams.
    #[arg(long, default_value_t = 5000)]
    streams: usize,
    /// Measure one round of a fifth of a second each with 500 streams, to see that everything runs.
    #[arg(long)]
    quick: bool,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The time that is added before the first byte.
    Added,
    /// A P/D request compared with its two legs.
    Legs,
    /// Requests a second.
    Rate,
    /// Concurrent streams.
    Streams,
    /// The memory of idle streams.
    Memory,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let scale = match arguments.quick {
        true => Scale { rounds: 1, time: Duration::from_millis(200), streams: 500 },
        false => Scale {
            rounds: arguments.rounds.max(1),
            time: Duration::try_from_secs_f64(arguments.seconds).map_err(io::Error::other)?,
            streams: arguments.streams,
        },
    };
    allow_open_files();
    let programs = programs(arguments)?;
    let fakes = Fakes::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let clients = tokio::task::LocalSet::new();
    let mut report = Report::default();
    for case in Case::all() {
        if !arguments.what.is_empty() && !arguments.what.contains(&case.what()) {
            continue;
        }
        eprintln!("{}", case.title(&scale));
        let mut table = Table::new(case, &scale);
        let mut peers = start(case, &programs, fakes)?;
        for round in 0..scale.rounds {
            if case == Case::Memory && round > 0 {
                // Proxies may keep memory that streams have needed once.
                peers = start(case, &programs, fakes)?;
            }
            for peer in &peers {
                let once = clients.block_on(&runtime, case.once(peer, fakes, &scale));
                let values = once.map_err(|error| {
                    io::Error::other(format!("{}: {}: {error}", case.title(&scale), peer.peer.name()))
                })?;
                table.add(peer.peer, values);
            }
        }
        if arguments.format == Format::Table {
            table.print();
        }
        report.tables.push(table);
    }
    match arguments.format {
        Format::Table => report.print_limits(),
        Format::Json => println!("{}", report.json(&scale)),
    }
    Ok(())
}

fn start(case: Case, programs: &Programs, fakes: Fakes) -> io::Result<Vec<Running>> {
    let mut running = Vec::new();
    for peer in case.peers() {
        running.extend(Running::start(*peer, programs, fakes)?);
    }
    Ok(running)
}

/// Finds the programs, and reports those that are missing.
fn programs(arguments: &Arguments) -> io::Result<Programs> {
    if !arguments.transload.is_file() {
        let missing = arguments.transload.display();
        return Err(io::Error::other(format!(
            "there is no {missing}: cargo build --profile dist -p transload, or name it with --transload"
        )));
    }
    let found = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Debian installs them there, which is not in every user's path.
        let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
        if found.is_none() {
            eprintln!("NOT RUN: {name} is not on the path");
        }
        found
    };
    let python = arguments.vllm_proxy.clone().filter(|script| {
        let imports =
            std::process::Command::new(&arguments.python).args(["-c", "import fastapi, uvicorn, httpx"]).output();
        script.is_file() && imports.is_ok_and(|output| output.status.success())
    });
    if python.is_none() {
        eprintln!(
            "NOT RUN: vLLM's example proxy; --vllm-proxy has to name its toy_proxy_server.py, and --python a Python with fastapi, \
             uvicorn and httpx"
        );
    }
    Ok(Programs {
        transload: arguments.transload.canonicalize()?,
        nginx: found("nginx"),
        haproxy: found("haproxy"),
        python: python.map(|script| (arguments.python.clone(), script)),
    })
}

/// Raises the limit of open files, since each stream takes two here.
fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this is not allowed, the current limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

impl Case {
    const fn what(self) -> What {
        match self {
            Self::Added { .. } => What::Added,
            Self::Legs => What::Legs,
            Self::Rate { .. } => What::Rate,
            Self::Streams => What::Streams,
            Self::Memory => What::Memory,
        }
    }

    fn peers(self) -> &'static [Peer] {
        match self {
            Self::Legs => &[Peer::Direct, Peer::Sidecar, Peer::Proxy, Peer::Python],
            Self::Rate { route, .. } if route.is_disaggregated() => &[Peer::Sidecar, Peer::Proxy, Peer::Python],
            Self::Memory => &[Peer::Sidecar, Peer::ProxyPass, Peer::Nginx, Peer::Haproxy],
            _ => &[Peer::Direct, Peer::Sidecar, Peer::ProxyPass, Peer::Nginx, Peer::Haproxy],
        }
    }
}
