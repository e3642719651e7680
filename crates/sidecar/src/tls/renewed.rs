//! A value that is made of files, and made again when they change.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::TlsError;
use super::pem::File;

const INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes that are read of one file. A bundle of all authorities of the web has a fifth of that.
const MAX_FILE: u64 = 1 << 20;

/// A value made of files, which are reread once a second while this exists.
///
/// Contents are compared, not times: platforms replace mounted secrets by changing symbolic links.
pub(super) struct Renewed<T>(Arc<Shared<T>>);

struct Shared<T> {
    current: RwLock<Arc<T>>,
    paths: Vec<PathBuf>,
    /// The files as last read, valid or not; `None` if they could not be read.
    seen: Mutex<Option<Vec<File>>>,
    make: Make<T>,
}

type Make<T> = Box<dyn Fn(&[File]) -> Result<T, TlsError> + Send + Sync>;

impl<T: Send + Sync + 'static> Renewed<T> {
    /// Reads the files and makes the value. Must be called within a tokio runtime. `make` gets the files in the order
    /// of their paths.
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
                    // The files may be on a network disk that does not respond.
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

    /// Rereads the files at once, and makes the value again if they have changed. If that fails the old value stays.
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
            // A missing file is logged once, like invalid contents.
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
