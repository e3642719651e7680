//! The folder that an engine keeps its files in: `<64 hex digits of the key>.kvc`.

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
/// It publishes and reads as erllama does and deletes nothing: erllama's habits of sweeping at its start,
/// and of deleting what does not load, are for whoever owns the folder. [`entries`](Self::entries) says
/// what that would be.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// What [`Folder::publish`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The file was not there; it is now.
    New,
    /// A file of this key was there already, is right, and was kept.
    AlreadyThere,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A file whose head is right, and whose name is that of its key.
    Kvc {
        /// Its key.
        key: CacheKey,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A file called `.kvc` that is wrong, or is another key's.
    Wrong {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        error: KvcError,
    },
    /// A file called `.tmp`: of a writer that is at work, or died.
    Temporary {
        /// Where it is.
        path: PathBuf,
    },
}

/// Why a folder could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The draft cannot be written.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A file is not what it should be.
    #[error("{} is damaged: {source}", path.display())]
    Wrong {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: KvcError,
    },
}

/// Tells temporary files of one process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Folder {
    /// The folder at `path`, made if it is not there, and durable then, as are those above it that were made.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FolderError> {
        let path = path.into();
        make_folder(&path, None).map_err(failed("make the folder", &path))?;
        Ok(Self { path })
    }

    /// Where the file of a key is, or would be.
    pub fn path(&self, key: &CacheKey) -> PathBuf {
        self.path.join(key.file_name())
    }

    /// Publishes a file: whole, durable, and without ever replacing one that is there.
    ///
    /// As erllama does: a temporary file that nobody else has, its data flushed, a link under the name of
    /// the key, the temporary name removed, the folder flushed, and what is there read again.
    ///
    /// # Errors
    /// Nothing was published, with two exceptions. With [`FolderError::Wrong`] a file of this name was there
    /// before and is damaged; and where the folder could not be flushed, the file is there, and may not be any
    /// more after a loss of power.
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
        // Ours alone, whether or not it came to a link. If it stays, it is one more temporary file of the dead.
        let _ = fs::remove_file(&temporary);
        let published = linked?;
        flush_folder(&self.path).map_err(failed("flush the folder", &self.path))?;
        match self.load(&key)? {
            Some(_) => Ok(published),
            // Removed meanwhile, or a symbolic link of this name that leads nowhere.
            None => {
                let gone = io::Error::from(io::ErrorKind::NotFound);
                Err(failed("read what was published as", &path)(gone))
            }
        }
    }

    /// A new file that nobody else has. Names left behind by dead processes are passed over.
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

    /// The file of a key, read and verified, or `None`. [`parse`](super::parse()) takes it apart.
    ///
    /// # Errors
    /// [`FolderError::Wrong`] if it is damaged or another key's.
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

    /// The files of the folder that are KVC files by name, in no order; their heads are read, their payloads
    /// are not. Others are passed over, and so is what is no regular file, whatever its name is.
    ///
    /// # Errors
    /// [`FolderError::Io`], of the folder or of one of its files.
    pub fn entries(&self) -> Result<impl Iterator<Item = Result<Entry, FolderError>> + use<>, FolderError> {
        let here = self.path.clone();
        let entries = fs::read_dir(&here).map_err(failed("list", &here))?;
        Ok(entries.filter_map(move |entry| {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => return Some(Err(failed("list", &here)(error))),
            };
            // A symbolic link is what it leads to. What cannot be looked at tells so when it is read.
            if path.metadata().is_ok_and(|meta| !meta.is_file()) {
                return None;
            }
            match path.extension()?.to_str()? {
                "tmp" => Some(Ok(Entry::Temporary { path })),
                "kvc" => look(path).transpose(),
                _ => None,
            }
        }))
    }
}

/// One `.kvc` file; `None` if it went away in the meantime.
fn look(path: PathBuf) -> Result<Option<Entry>, FolderError> {
    let head = match open_file(&path).and_then(|mut file| Head::read(&mut file)) {
        Ok(head) => head,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let named = path.file_stem().and_then(|stem| stem.to_str());
    let named: Option<CacheKey> = named.and_then(|stem| stem.parse().ok());
    let checked = head.info().and_then(|info| {
        // A name that is no key finds no file, and so is nobody's fault.
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
