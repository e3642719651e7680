//! An engine's folder of files: `<64 hex digits of the key>.kvc`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use transload_store::internal::{flush_folder, make_folder};

use super::draft::{Draft, DraftError};
use super::error::KvcError;
use super::file::{Head, open_file};
use super::key::CacheKey;
use super::parse::{self, PayloadSum};

/// A folder of KVC files.
///
/// It publishes and reads like erllama, and deletes nothing. erllama sweeps its folder at start and deletes files that
/// do not load; here that is left to the folder's owner. [`entries`](Self::entries) lists the candidates.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// The outcome of [`Folder::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The file did not exist, and was published.
    New,
    /// An intact file with this key existed and was kept.
    AlreadyThere,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A file with a valid head, under its key's name or a name that is no key at all. Only the first is found by key.
    Kvc {
        /// The file's key.
        key: CacheKey,
        /// The file's length in bytes.
        bytes: u64,
    },
    /// A `.kvc` file that is invalid or has another key than its name.
    Wrong {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        error: KvcError,
    },
    /// A `.tmp` file of a writer that is active or died.
    Temporary {
        /// The path of the file.
        path: PathBuf,
    },
}

/// Describes why an operation on a folder failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The system reported an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The draft cannot be written.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A file is invalid.
    #[error("{} is damaged: {source}", path.display())]
    Wrong {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: KvcError,
    },
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Folder {
    /// Opens the folder at `path`. Creates it and its missing parents if needed, and flushes their entries.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FolderError> {
        let path = path.into();
        make_folder(&path, None).map_err(failed("make the folder", &path))?;
        Ok(Self { path })
    }

    /// Returns the path of a key's file, whether it exists or not.
    pub fn path(&self, key: &CacheKey) -> PathBuf {
        self.path.join(key.file_name())
    }

    /// Publishes a complete, durable file. It never replaces an existing one.
    ///
    /// The steps are erllama's: write and flush a temporary file, link it under the key's name, remove the temporary
    /// name, flush the folder, and read the file back.
    ///
    /// # Errors
    /// A call that fails has published no file, with three exceptions. With [`FolderError::Wrong`], a damaged file of this
    /// name exists. If the folder could not be flushed, the file exists but may be lost with a loss of power. If the file
    /// could not be read back, it exists.
    pub fn publish(&self, draft: &Draft, payload: &[u8]) -> Result<Published, FolderError> {
        let mut sum = PayloadSum::new();
        sum.update(payload);
        let prefix = draft.prefix(&sum)?;
        let key = draft.key();
        let path = self.path(&key);
        let (mut file, temporary) = self.temporary(&key)?;
        let written = write(&mut file, &[&prefix, payload]);
        let written = written.map_err(failed("write", &temporary));
        let linked = written.and_then(|()| match fs::hard_link(&temporary, &path) {
            Ok(()) => Ok(Published::New),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Published::AlreadyThere),
            Err(source) => Err(failed("link", &path)(source)),
        });
        // Remove it in any case. If that fails, it is a temporary file without an owner.
        let _ = fs::remove_file(&temporary);
        let published = linked?;
        flush_folder(&self.path).map_err(failed("flush the folder", &self.path))?;
        match self.load(&key)? {
            Some(_) => Ok(published),
            // It was removed meanwhile, or the name is a dangling symbolic link.
            None => {
                let gone = io::Error::from(io::ErrorKind::NotFound);
                Err(failed("read what was published as", &path)(gone))
            }
        }
    }

    /// Creates a new file with a unique name. Names that dead processes left are skipped.
    fn temporary(&self, key: &CacheKey) -> Result<(File, PathBuf), FolderError> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{key}.{}.{number}.tmp", std::process::id());
            let path = self.path.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("make", &path)(error)),
            }
        }
    }

    /// Reads and verifies the file of a key. Returns `None` if there is none. [`parse`](super::parse()) parses it.
    ///
    /// # Errors
    /// [`FolderError::Wrong`] if the file is damaged or has another key.
    pub fn load(&self, key: &CacheKey) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.path(key);
        let read = open_file(&path).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        let file = match read {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        parse::parse(&file)
            .and_then(|kvc| kvc.verify(Some(key)))
            .map_err(|source| FolderError::Wrong { path, source })?;
        Ok(Some(file))
    }

    /// Returns the KVC files of the folder, by name and in no particular order. Their heads are read, their payloads
    /// are not. Other files are skipped, and so is everything that is not a regular file.
    ///
    /// # Errors
    /// [`FolderError::Io`], for the folder or for one of its files.
    pub fn entries(&self) -> Result<impl Iterator<Item = Result<Entry, FolderError>> + use<>, FolderError> {
        let here = self.path.clone();
        let entries = fs::read_dir(&here).map_err(failed("list", &here))?;
        Ok(entries.filter_map(move |entry| {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => return Some(Err(failed("list", &here)(error))),
            };
            // Follow symbolic links. An error shows up when the file is read.
            if path.metadata().is_ok_and(|meta| !meta.is_file()) {
                return None;
            }
            match path.extension()?.to_str()? {
                "tmp" => Some(Ok(Entry::Temporary { path })),
                "kvc" => read_entry(path).transpose(),
                _ => None,
            }
        }))
    }
}

/// Reads the head of a `.kvc` file. Returns `None` if it was removed meanwhile.
fn read_entry(path: PathBuf) -> Result<Option<Entry>, FolderError> {
    let head = match open_file(&path).and_then(|mut file| Head::read(&mut file)) {
        Ok(head) => head,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let named = path.file_stem().and_then(|stem| stem.to_str());
    let named: Option<CacheKey> = named.and_then(|stem| stem.parse().ok());
    let checked = head.info().and_then(|info| {
        // A name that is no key is never looked up, so it does no harm.
        named.map_or(Ok(()), |named| info.check_key(&named))?;
        Ok(info.key())
    });
    Ok(Some(match checked {
        Ok(key) => Entry::Kvc { key, bytes: head.file_len() },
        Err(error) => Entry::Wrong { path, error },
    }))
}

fn write(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_data()
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { action, path, source }
}
