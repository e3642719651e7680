//! Servers of a file that is read again when it changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::Found;
use crate::Role;
use crate::target::{ServerUrl, ServerUrlError};

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The bytes of the file: ten times what the most servers need.
const MOST_BYTES: u64 = 1 << 20;

/// A file and what it said.
///
/// Its contents count and not its times: editors replace files, and Kubernetes turns a symbolic link above them.
pub(super) struct Watched {
    path: PathBuf,
    found: Found,
    /// What was read last, whether or not it was of use; `None` if nothing could be read.
    seen: Option<Option<Vec<u8>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    prefill: Vec<String>,
    #[serde(default)]
    decode: Vec<String>,
}

/// Why a file gives no servers.
#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it has more than {MOST_BYTES} bytes")]
    TooLong,
    #[error(r#"it is not JSON like {{"prefill": ["http://HOST:PORT"], "decode": []}}: {0}"#)]
    Form(#[from] serde_json::Error),
    /// What is there is not shown: there may be a password in it.
    #[error("its {role} server {number} is no URL: {source}")]
    Url { role: &'static str, number: usize, source: ServerUrlError },
}

impl Watched {
    /// Reads the file for the first time.
    pub(super) fn read_first(path: PathBuf, found: Found) -> Self {
        let mut watched = Self { path, found, seen: None };
        watched.look();
        watched
    }

    /// Looks at the file every second.
    pub(super) async fn follow(mut self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            // The file may be on a network's disk that does not answer.
            let looking = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            let Ok(looked) = looking.await else { return };
            self = looked;
        }
    }

    pub(super) fn look(&mut self) {
        let (text, servers) = match self.read() {
            Ok(text) => {
                let servers = parse(&text);
                (Some(text), servers)
            }
            Err(wrong) => (None, Err(wrong)),
        };
        if self.seen.as_ref() == Some(&text) {
            return;
        }
        let path = self.path.display();
        match servers {
            Ok((prefill, decode)) => self.found.tell(prefill, decode),
            Err(error) if self.seen.is_none() => {
                tracing::warn!(%path, %error, "a file gives no servers; it is read again when it changes");
            }
            Err(error) => {
                tracing::warn!(%path, %error, "a file gives no servers any more; those before stay");
            }
        }
        self.seen = Some(text);
    }

    fn read(&self) -> Result<Vec<u8>, FileError> {
        let mut text = Vec::new();
        File::open(&self.path)?.take(MOST_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(FileError::TooLong);
        }
        Ok(text)
    }
}

/// The prefill and the decode servers of a text. One that is broken in part is broken: somebody is to mend it.
pub(super) fn parse(text: &[u8]) -> Result<(Vec<ServerUrl>, Vec<ServerUrl>), FileError> {
    let Text { prefill, decode } = serde_json::from_slice(text)?;
    Ok((urls(Role::Prefill, &prefill)?, urls(Role::Decode, &decode)?))
}

fn urls(role: Role, texts: &[String]) -> Result<Vec<ServerUrl>, FileError> {
    let url = |(number, text): (usize, &String)| {
        ServerUrl::parse(text).map_err(|source| FileError::Url { role: role.name(), number, source })
    };
    (1..).zip(texts).map(url).collect()
}
