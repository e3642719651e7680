//! What a prefill server holds for a client that leaves is given up.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transload_sidecar::settings::{Beside, Mode, Settings};
use transload_sidecar::{Running, ServerUrl};
use transload_tests::pair::Pair;
use transload_transfer::{Direction, LeaseEnd, LeaseSetId, Roles, ServiceName};

/// Takes one request, to the last byte that `ends` it.
async fn request(listener: &TcpListener, ends: &[u8]) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(ends) {
        assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
    }
    stream
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_leases_of_its_ticket() {
    let pair = Pair::default();
    let set = LeaseSetId([31; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let certs = tempfile::tempdir().unwrap();
    let name = ServiceName::new("decode").unwrap();
    let identity = pair.authority.issue(&name, Roles::all()).unwrap();
    identity.save(certs.path().join("certs")).unwrap();

    let prefill = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let decode = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", decode.local_addr().unwrap());
    let mode = Mode::Sidecar(Beside::new(ServerUrl::parse(&url).unwrap()));
    let mut settings = Settings::new(mode, ([127, 0, 0, 1], 0).into());
    settings.certs = Some(certs.path().join("certs"));
    let running = Running::start(settings).await.unwrap();

    let mut client = TcpStream::connect(running.addresses()[0]).await.unwrap();
    let asked = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-prefiller-host-port: {}\r\ncontent-length: 14\r\n\r\n{{\"prompt\":\"x\"}}",
        prefill.local_addr().unwrap()
    );
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut asking = request(&prefill, b"}").await;
    let params = serde_json::json!({"kv_transfer_params": {"transload_ticket": ticket.expose()}}).to_string();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{params}", params.len());
    asking.write_all(answer.as_bytes()).await.unwrap();
    let mut fetching = request(&decode, b"}}").await;

    drop(client);
    assert_eq!(fetching.read(&mut [0]).await.unwrap(), 0, "the decode server hears of it");
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Cancelled);
    }
    running.drain(Duration::from_secs(1)).await;
}
