//! Discovers servers in a file that is reread when it changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::found::Found;
use crate::Role;
use crate::target::{ServerUrl, ServerUrlError};

const INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of the file: ten times what the most servers need.
const MOST_BYTES: u64 = 1 << 20;

/// A watched file with its last contents.
///
/// Contents are compared, not times: editors replace files, and Kubernetes changes a symbolic link above them.
pub(super) struct Watched {
    path: PathBuf,
    found: Found,
    /// The contents at the last look, valid or not; `Some(None)` if the file could not be read, `None` before the first
    /// look.
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

#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it has more than {MOST_BYTES} bytes")]
    TooLong,
    #[error(r#"it is not JSON like {{"prefill": ["http://HOST:PORT"], "decode": []}}: {0}"#)]
    Form(#[from] serde_json::Error),
    /// A server's URL is invalid. The text is not shown, since it may contain a password.
    #[error("its {role} server {number} is not a URL: {source}")]
    Url { role: &'static str, number: usize, source: ServerUrlError },
}

impl Watched {
    pub(super) fn read_first(path: PathBuf, found: Found) -> Self {
        let mut watched = Self { path, found, seen: None };
        watched.look();
        watched
    }

    pub(super) async fn follow(mut self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            // The file may be on a network disk that does not respond, so it is read on a blocking thread.
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
            Ok((prefill, decode)) => self.found.update(prefill, decode),
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

/// Parses the prefill and the decode servers. One invalid entry makes the whole text invalid, so that the mistake is
/// noticed.
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
