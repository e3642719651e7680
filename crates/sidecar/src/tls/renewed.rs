//! What is made of files, and made anew when they change.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::TlsError;
use super::pem::File;

/// How often files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The bytes of one file that are read. Bundles of all authorities of the web have a fifth of it.
const MAX_FILE: u64 = 1 << 20;

/// A value made of files, which are read again once a second for as long as this lives.
///
/// The files' contents count and not their times: platforms replace mounted secrets by turning symbolic links.
pub(super) struct Renewed<T>(Arc<Shared<T>>);

struct Shared<T> {
    current: RwLock<Arc<T>>,
    paths: Vec<PathBuf>,
    /// What was read the last time, whether or not something could be made of it.
    seen: Mutex<Option<Vec<File>>>,
    make: Make<T>,
}

type Make<T> = Box<dyn Fn(&[File]) -> Result<T, TlsError> + Send + Sync>;

impl<T: Send + Sync + 'static> Renewed<T> {
    /// Reads the files and makes the value, within a tokio runtime. `make` gets them in the order of their paths.
    pub(super) fn load(
        paths: Vec<PathBuf>,
        make: impl Fn(&[File]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let files = read(&paths)?;
        let shared = Arc::new(Shared {
            current: RwLock::new(Arc::new(make(&files)?)),
            paths,
            seen: Mutex::new(Some(files)),
            make: Box::new(make),
        });
        if !shared.paths.is_empty() {
            let weak = Arc::downgrade(&shared);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(INTERVAL).await;
                    let Some(shared) = weak.upgrade() else {
                        return;
                    };
                    // Files may be on a network's disk that does not answer.
                    let _ = tokio::task::spawn_blocking(move || shared.renew()).await;
                }
            });
        }
        Ok(Self(shared))
    }

    pub(super) fn current(&self) -> Arc<T> {
        let current = self.0.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files now, and makes the value anew if they have changed. The old one stays where that fails.
    pub(super) fn renew(&self) {
        self.0.renew();
    }
}

impl<T> Shared<T> {
    fn renew(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, made) = match read(&self.paths) {
            Ok(files) if seen.as_ref() == Some(&files) => return,
            Ok(files) => {
                let made = (self.make)(&files);
                (Some(files), made)
            }
            // A file that is not there is like any other contents: told of once.
            Err(_) if seen.is_none() => return,
            Err(wrong) => (None, Err(wrong)),
        };
        *seen = files;
        match made {
            Ok(made) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                tracing::info!(files = ?self.paths, "certificates are renewed");
            }
            Err(wrong) => {
                tracing::warn!(error = %wrong, "certificates have changed and cannot be used; the ones before stay");
            }
        }
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<File>, TlsError> {
    let read = |path: &PathBuf| {
        let mut bytes = Vec::new();
        match std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)) {
            Ok(_) => Ok(File { path: path.clone(), bytes }),
            Err(source) => Err(TlsError::Read { path: path.clone(), source }),
        }
    };
    paths.iter().map(read).collect()
}
