//! The data plane on this machine: loopback QUIC with mutual TLS, and the staging ring between two
//! processes of one host. Gather, scatter and checksums are in every figure; the limit is measured in turns with it.
//!
//! `cargo bench -p transload-benches --bench data [-- quic|local] [-- ROUNDS]`. On a busy machine run it
//! with real-time priority (`chrt -f 5`), or it measures the scheduler.
//!
//! To try other settings: `LANES`, `BUFFERS`, `BUFFER_BYTES` and `UDP_PAYLOAD` in the environment.

mod case;
mod lanes;
mod local;
mod show;

fn main() {
    if let Ok(socket) = std::env::var(local::OTHER_PROCESS) {
        return local::source(socket);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measuring = arguments.iter().any(|argument| argument == "--bench");
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok());
    // `cargo test --benches` only wants to see that it runs.
    let rounds = rounds.unwrap_or(if measuring { 11 } else { 1 });
    let named = |name: &str| arguments.iter().any(|argument| argument == name);
    let (quic, local) = (named("quic"), named("local"));
    show::head();
    if quic || !local {
        lanes::measure(rounds);
    }
    if local || !quic {
        local::measure(rounds);
    }
}

/// A number from the environment.
fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={text} is not a number of that kind"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}
