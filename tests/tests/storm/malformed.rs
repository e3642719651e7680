//! Clients whose requests are not HTTP, or not valid.

use tokio::io::AsyncWriteExt;
use transload_tests::process::Chance;

use super::answer::{Connection, Got};

const BODY: &str = "{\"prompt\":\"evil\"}";

/// Sends one and waits for its refusal. No server may see any of it.
pub(crate) async fn send(mut connection: Connection, chance: &mut Chance) -> Result<(), String> {
    let request = draw(chance);
    // It may be refused before it is whole.
    let _ = connection.stream().write_all(&request).await;
    let _ = connection.stream().shutdown().await;
    match connection.answer().await? {
        // What is left unread resets the connection, and the refusal with it.
        Got::Broken(_) => Ok(()),
        Got::Whole(whole) if whole.status() >= 400 && whole.text().contains("message") => Ok(()),
        Got::Whole(whole) => Err(format!("{whole:?} to {}", request.escape_ascii())),
    }
}

fn draw(chance: &mut Chance) -> Vec<u8> {
    let post = |head: &str, body: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{head}\r\n{body}")
    };
    let length = BODY.len();
    let sized = format!("content-length: {length}\r\n");
    let requests = [
        post(&format!("{sized}transfer-encoding: chunked\r\n"), &format!("{length:x}\r\n{BODY}\r\n0\r\n\r\n")),
        post(&format!("{sized}content-length: 5\r\n"), BODY),
        post("content-length: +17\r\n", BODY),
        post("content-length: -1\r\n", BODY),
        post("transfer-encoding: chunked\r\n", &format!("zz\r\n{BODY}\r\n0\r\n\r\n")),
        post("transfer-encoding: chunked\r\n", &format!("{length:x}\r\n{BODY}evil0\r\n\r\n")),
        post("transfer-encoding: chunked, identity\r\n", BODY),
        post("content-length: 100\r\n", BODY),
        post(&format!("{sized}x-evil : a\r\n"), BODY),
        post(&format!("{sized}x-a: b\r\n evil\r\n"), BODY),
        post(&format!("{sized}x-a: evil\0\r\n"), BODY),
        post(&format!("{sized}host: evil\r\n"), BODY),
        post(&sized, BODY).replace("\r\n", "\n"),
        post(&sized, BODY).replace("host: a\r\n", ""),
        post(&sized, BODY).replace("HTTP/1.1", "HTTP/3.7"),
        post(&format!("x-evil: {}\r\n{sized}", "a".repeat(1 << 20)), BODY),
        post(&sized, BODY).replace("POST", "PO ST"),
        post(&sized, BODY).replace("/v1/completions", "/v1/evil\u{1}"),
        "\u{16}\u{3}\u{1}evil".repeat(30),
    ];
    let index = chance.below(requests.len() as u64) as usize;
    requests[index].clone().into()
}
