//! Clients of HTTP.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::PATIENCE;
use crate::wire::{self, Kind, Message};

/// A connection that is kept from request to request.
pub struct Client(pub BufReader<TcpStream>);

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await.expect("a connection in time");
        Self(BufReader::new(stream.expect("a connection")))
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes.as_ref()).await
    }

    /// Reads an answer to any request but `HEAD`.
    pub async fn answer(&mut self) -> Message {
        let answer = timeout(PATIENCE, wire::read(&mut self.0, Kind::Answer)).await;
        answer.expect("an answer in time").expect("an answer").expect("an answer and no end")
    }

    /// Reads the head of an answer alone.
    pub async fn head(&mut self) -> Message {
        let head = timeout(PATIENCE, wire::read_head(&mut self.0)).await;
        head.expect("a head in time").expect("a head").expect("a head and no end")
    }

    pub async fn get(&mut self, path: &str) -> Message {
        self.send(request("GET", path, &[], "")).await.expect("it takes a request");
        self.answer().await
    }

    /// Returns whether the connection has ended without another byte.
    pub async fn is_closed(&mut self) -> bool {
        let read = timeout(PATIENCE, self.0.read(&mut [0; 1])).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }
}

/// Returns a request as bytes. Its host is `localhost` if the headers name none; a body has its length.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let named = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
    for (name, value) in (!named).then_some(&("Host", "localhost")).into_iter().chain(headers) {
        head += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    format!("{head}\r\n{body}").into()
}

/// Asks on a connection of its own.
pub async fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Message {
    let mut client = Client::connect(address).await;
    let headers = [headers, &[("Connection", "close")]].concat();
    client.send(request(method, path, &headers, body)).await.expect("it takes a request");
    match method {
        "HEAD" => client.head().await,
        _ => client.answer().await,
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Message {
    ask(address, "GET", path, &[], "").await
}
