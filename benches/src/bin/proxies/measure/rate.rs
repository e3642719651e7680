//! Measures requests a second, and the proxy's processor time for each.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Route;
use crate::client::{Client, body, post};
use crate::fakes::Fakes;
use crate::peers::Running;

pub(super) async fn measure(
    peer: &Running,
    fakes: Fakes,
    route: Route,
    connections: usize,
    time: Duration,
) -> io::Result<Vec<f64>> {
    let (path, prefill) = match route {
        Route::Completions => ("/v1/completions", None),
        Route::Embeddings => ("/v1/embeddings", None),
        Route::Disaggregated => ("/v1/completions", Some(fakes.prefill)),
    };
    let request: Rc<[u8]> = post(path, prefill, &body("")).into();
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = Client::connect(peer.at).await?;
        client.ask(&request).await?;
        clients.push(client);
    }
    // The first part is not counted, since the proxy opens its connections in it.
    let (clients, _) = load(clients, &request, time / 5).await?;
    let (start, busy) = (Instant::now(), peer.busy());
    let (_, answers) = load(clients, &request, time).await?;
    let (time, busy) = (start.elapsed(), peer.busy() - busy);
    let answers = answers as f64;
    Ok(vec![answers / time.as_secs_f64(), busy.as_secs_f64() * 1e6 / answers])
}

/// Lets every client send requests repeatedly. Returns the clients and the number of answers.
async fn load(clients: Vec<Client>, request: &Rc<[u8]>, time: Duration) -> io::Result<(Vec<Client>, usize)> {
    let mut tasks = JoinSet::new();
    let end = Instant::now() + time;
    for mut client in clients {
        let request = request.clone();
        tasks.spawn_local(async move {
            let mut answers = 0;
            while Instant::now() < end {
                client.ask(&request).await?;
                answers += 1;
            }
            io::Result::Ok((client, answers))
        });
    }
    let mut clients = Vec::new();
    let mut all = 0;
    while let Some(done) = tasks.join_next().await {
        let (client, answers) = done??;
        clients.push(client);
        all += answers;
    }
    Ok((clients, all))
}
