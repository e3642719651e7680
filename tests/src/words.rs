//! Encodes and decodes messages about paths by hand, from the reference page.

use transload_transfer::Path;
use transload_transfer::plan::ids::Nonce;
use transload_transfer::wire::message::Message;

/// Encodes a number as postcard does: seven bits a byte, the lowest first.
fn number(mut n: u64, out: &mut Vec<u8>) {
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads such numbers, and bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..63).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            n |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(n);
            }
        }
        None
    }

    fn nonce(&mut self) -> Option<Nonce> {
        let (nonce, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Nonce(*nonce))
    }
}

/// Asks where lanes may be connected to.
pub fn lanes_wanted(lanes: u16) -> Message {
    let mut word = vec![0];
    number(lanes.into(), &mut word);
    let path = Path::QUIC;
    Message::Path { path, word }
}

/// Makes the message that offers lanes at these ports.
pub fn lanes_offered(ports: &[u16], nonce: Nonce) -> Message {
    let mut word = vec![1];
    number(ports.len() as u64, &mut word);
    for port in ports {
        number((*port).into(), &mut word);
    }
    word.extend(nonce.0);
    let path = Path::QUIC;
    Message::Path { path, word }
}

/// Makes the message that offers a ring.
pub fn ring_offered(socket: &str, token: (Nonce, Nonce)) -> Message {
    let mut word = Vec::new();
    number(socket.len() as u64, &mut word);
    word.extend(socket.as_bytes());
    word.extend(token.0.0);
    word.extend(token.1.0);
    let path = Path::RING;
    Message::Path { path, word }
}

fn word(message: &Message, of: Path) -> Option<&[u8]> {
    match message {
        Message::Path { path, word } if *path == of => Some(word),
        _ => None,
    }
}

/// Returns whether a message asks for lanes.
pub fn wants_lanes(message: &Message) -> bool {
    word(message, Path::QUIC).is_some_and(|word| word[0] == 0)
}

/// Returns the address at which lanes are offered, if a message offers any.
pub fn offers_lanes(message: &Message) -> Option<(Vec<u16>, Nonce)> {
    let mut word = Reader(word(message, Path::QUIC)?);
    if word.number()? != 1 {
        return None;
    }
    let ports = (0..word.number()?).map(|_| u16::try_from(word.number()?).ok());
    let ports = ports.collect::<Option<_>>()?;
    Some((ports, word.nonce()?))
}

/// Returns the socket at which a ring is offered, if a message offers one.
pub fn offers_ring(message: &Message) -> Option<(String, (Nonce, Nonce))> {
    let mut word = Reader(word(message, Path::RING)?);
    let length = word.number()?;
    let (socket, rest) = word.0.split_at_checked(length as usize)?;
    let socket = String::from_utf8(socket.to_vec()).ok()?;
    word.0 = rest;
    Some((socket, (word.nonce()?, word.nonce()?)))
}
