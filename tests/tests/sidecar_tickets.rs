//! A prefill server's leases for a client that leaves are cancelled.

use std::time::Duration;

use transload_sidecar::settings::{Beside, Mode, Settings};
use transload_sidecar::{Running, ServerUrl};
use transload_test_servers::{Client, Fake, Script, request, soon};
use transload_tests::cluster::all_end;
use transload_tests::pair::Pair;
use transload_transfer::{Direction, LeaseEnd, LeaseSetId, Roles, ServiceName};

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

    let params = serde_json::json!({"kv_transfer_params": {"transload_ticket": ticket.expose()}}).to_string();
    let prefill = Fake::answering(move |_, _| Script::json(200, &params));
    let decode = Fake::answering(|_, _| Script::silence());
    let mode = Mode::Sidecar(Beside::new(ServerUrl::parse(&decode.url()).unwrap()));
    let mut settings = Settings::new(mode, ([127, 0, 0, 1], 0).into());
    settings.certs = Some(certs.path().join("certs"));
    let running = Running::start(settings).await.unwrap();

    let mut client = Client::connect(running.addresses()[0]).await;
    let named = prefill.address.to_string();
    let asked = request("POST", "/v1/completions", &[("x-prefiller-host-port", &named)], r#"{"prompt":"x"}"#);
    client.send(asked).await.unwrap();
    soon("the decode server is asked", async || !decode.seen().is_empty()).await;

    drop(client);
    soon("the decode server hears of it", async || decode.left() == 1).await;
    all_end(leases, LeaseEnd::Cancelled).await;
    running.drain(Duration::from_secs(1)).await;
}
