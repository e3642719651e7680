//! Measures the times of sequential requests.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::times;
use crate::client::{Client, body, post};
use crate::fakes::Fakes;

/// The number of requests sent before times are taken, to open connections and warm up code.
const WARM: usize = 100;

const COMPLETIONS: &str = "/v1/completions";

/// Measures the time to the first byte of an answer's body.
pub(super) async fn first_byte(at: SocketAddr, connections: usize, time: Duration) -> io::Result<Vec<f64>> {
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        clients.spawn_local(async move {
            let mut client = Client::connect(at).await?;
            let request = post(COMPLETIONS, None, &body("\"stream\":true,\"user\":\"events=2\","));
            let mut taken = Vec::new();
            let mut start = Instant::now();
            for sent in 0_usize.. {
                if sent == WARM {
                    start = Instant::now();
                }
                let took = client.ask(&request).await?;
                if sent >= WARM {
                    taken.push(took.first);
                    if start.elapsed() >= time {
                        break;
                    }
                }
            }
            io::Result::Ok(taken)
        });
    }
    let mut taken = Vec::new();
    while let Some(client) = clients.join_next().await {
        taken.extend(client??);
    }
    times(taken)
}

/// Measures the time of a whole P/D request.
pub(super) async fn through(at: SocketAddr, prefill: SocketAddr, time: Duration) -> io::Result<Vec<f64>> {
    let mut client = Client::connect(at).await?;
    let request = post(COMPLETIONS, Some(prefill), &body(""));
    let mut taken = Vec::new();
    for _ in 0..WARM {
        client.ask(&request).await?;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        taken.push(client.ask(&request).await?.whole);
    }
    times(taken)
}

/// Measures the time of the two legs of a P/D request, sent directly to the servers one after the other.
pub(super) async fn straight(fakes: Fakes, time: Duration) -> io::Result<Vec<f64>> {
    let mut prefill = Client::connect(fakes.prefill).await?;
    let mut decode = Client::connect(fakes.decode).await?;
    let asked = "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false},";
    let blocks = "1000,".repeat(128);
    let fetched = format!("\"kv_transfer_params\":{{\"remote_block_ids\":[{blocks}0]}},");
    let asked = post(COMPLETIONS, None, &body(asked));
    // The prompt is as long as the other's; the parameters to fetch come on top.
    let whole = body("").replacen('{', &format!("{{{fetched}"), 1);
    let fetched = post(COMPLETIONS, None, &whole);
    let mut taken = Vec::new();
    for _ in 0..WARM {
        prefill.ask(&asked).await?;
        decode.ask(&fetched).await?;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        let first = prefill.ask(&asked).await?.whole;
        taken.push(first + decode.ask(&fetched).await?.whole);
    }
    times(taken)
}
