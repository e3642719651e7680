//! The commands and replies that this backend uses.

use redis::{Cmd, Value};

use super::failure::Failure;

/// The longest string in Redis by default (`proto-max-bulk-len`): 512 MiB.
pub(super) const MAX_BULK: usize = 512 << 20;

/// Keeps the next commands on the connection from updating last-used times, where the server supports it.
pub(super) const NO_TOUCH: &[&[u8]] = &[b"CLIENT", b"NO-TOUCH", b"ON"];
pub(super) const TOUCH_AGAIN: &[&[u8]] = &[b"CLIENT", b"NO-TOUCH", b"OFF"];

pub(super) fn command(words: &[&[u8]]) -> Cmd {
    let bytes = words.iter().map(|word| word.len()).sum();
    let mut command = Cmd::with_capacity(words.len(), bytes);
    for &word in words {
        command.arg(word);
    }
    command
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Status(String),
    /// An error, such as `-ERR ...`: the server understood the command and refused it.
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nothing,
    Array(Vec<Reply>),
}

impl TryFrom<Value> for Reply {
    type Error = Failure;

    fn try_from(value: Value) -> Result<Self, Failure> {
        Ok(match value {
            Value::Okay => Self::Status("OK".into()),
            Value::SimpleString(text) => Self::Status(text),
            Value::ServerError(error) => Self::Error(match error.details() {
                Some(details) => format!("{} {details}", error.code()),
                None => error.code().to_owned(),
            }),
            Value::Int(int) => Self::Int(int),
            Value::BulkString(data) => Self::Bulk(data),
            Value::Nil => Self::Nothing,
            Value::Array(items) => Self::Array(items.into_iter().map(Self::try_from).collect::<Result<_, _>>()?),
            // RESP2 has no other kinds.
            _ => {
                return Err(Failure::Garbage("a reply of an unexpected kind".into()));
            }
        })
    }
}

pub(super) fn unexpected(reply: &Reply) -> Failure {
    Failure::Garbage(match reply {
        Reply::Status(text) | Reply::Error(text) => {
            format!("`{}`", text.chars().take(80).collect::<String>())
        }
        Reply::Int(int) => format!("the number {int}"),
        Reply::Bulk(_) => "a string in an unexpected place".into(),
        Reply::Nothing => "nothing where a value must be".into(),
        Reply::Array(_) => "an array in an unexpected place".into(),
    })
}
