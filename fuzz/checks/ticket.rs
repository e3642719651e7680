//! The fuzz check of tickets.

use transload_transfer::{Ticket, TicketKey};

/// The secret that the corpus is sealed with.
pub(crate) const SECRET: [u8; 32] = [7; 32];

/// Checks the bytes as a text, and as the claims of an authentic ticket.
pub(crate) fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        open(text);
    }
    let mut sealed = data.to_vec();
    let key = blake3::derive_key("transload 1 ticket key", &SECRET);
    sealed.extend_from_slice(blake3::keyed_hash(&key, data).as_bytes());
    open(&format!("tl1.{}", base64url(&sealed)));
}

/// Checks that the claims of a ticket survive minting, and that none of its contents is printed.
fn open(text: &str) {
    let key = TicketKey::new(&SECRET);
    let Ok(ticket) = Ticket::from_text(text) else {
        return;
    };
    assert_eq!(format!("{ticket:?}").len(), "Ticket(ticket#01234567)".len());
    if let Ok(claims) = ticket.open(&key) {
        let again = Ticket::mint(&key, &claims).expect("what was minted can be minted");
        assert_eq!(again.open(&key).as_ref(), Ok(&claims));
    }
}

fn base64url(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (7 - i % 8) & 1);
    let letters = (0..bytes.len() * 8).step_by(6);
    let letters = letters.map(|at| (at..at + 6).fold(0, |value, i| value << 1 | bit(i)));
    letters.map(|value| char::from(alphabet[usize::from(value)])).collect()
}
