//! `transload sidecar` and `transload proxy` among servers and clients that fail in every way at random moments: each client gets
//! the tokens of its own request, one clear error or a visible break, and nothing is left behind.
//!
//! What goes wrong is drawn from a seed, and written into each request, so that servers and clients agree on it.
//! `TRANSLOAD_TEST_REQUESTS` and `TRANSLOAD_TEST_SEED` ask for more of it; `./campaign proxies` does.

mod answer;
mod client;
mod fakes;
mod kills;
mod malformed;
mod plan;
mod script;
mod world;

use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use transload_test_servers::arguments;

use self::plan::Setting;
use self::world::World;

/// The body of the process: the whole program except the three lines of its `main`.
#[test]
#[ignore = "the other process of the tests here"]
fn other_process() {
    if let Some(arguments) = arguments() {
        std::process::exit(transload::command::run(Vec::new(), arguments).into());
    }
}

#[test]
fn every_client_gets_its_answer_a_clear_error_or_a_break() {
    let seed = number("TRANSLOAD_TEST_SEED").unwrap_or(4711);
    let requests = number("TRANSLOAD_TEST_REQUESTS").unwrap_or(6_000);
    let start = Instant::now();
    let each = requests.div_ceil(Setting::ALL.len() as u64);
    let told = Runtime::new().unwrap().block_on(async {
        let mut worlds = JoinSet::new();
        for setting in Setting::ALL {
            worlds.spawn(async move { World::start(setting, seed).await.weather(each).await });
        }
        worlds.join_all().await
    });
    let mut faults = Vec::new();
    for (line, found) in told {
        println!("{line}");
        faults.extend(found);
    }
    let seconds = start.elapsed().as_secs();
    println!("{requests} requests, seed {seed}, {seconds} s");
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
}

#[test]
fn no_request_is_lost_with_a_server_that_could_be_saved() {
    let seed = number("TRANSLOAD_TEST_SEED").unwrap_or(4711);
    // A campaign of a million spends less here: each takes its time.
    let requests = number("TRANSLOAD_TEST_REQUESTS").map_or(1_500, |requests| requests.div_ceil(20));
    let faults = Runtime::new().unwrap().block_on(kills::weather(requests, seed));
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
