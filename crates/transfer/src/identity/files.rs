//! Identities and authorities as files.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use thiserror::Error;

use super::{
    authority::{Authority, AuthorityError},
    certificate::MAX_CERTIFICATE_BYTES,
    pem,
    proof::{Identity, IdentityError, Renewals},
    ticket_secret::TicketSecret,
};
use transload_plan::ids::{NameError, ServiceName};

/// The stem of the authority's files. No agent can have this name.
const AUTHORITY: &str = "ca";
const AUTHORITY_CERTIFICATE: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";
const TICKET_KEY: &str = "ticket.key";

/// The expected contents of a key file, for errors.
const PRIVATE_KEY: &str = "a private key in PEM";

/// The modes of secret files and of public ones.
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
/// The mode of a folder with keys.
const FOLDER: u32 = 0o700;

/// The largest file that is read, in bytes. It suffices for a chain of a few certificates.
const MAX_FILE_BYTES: u64 = 8 * MAX_CERTIFICATE_BYTES as u64;

/// The reason why an identity or an authority could not be read from its folder, or written there.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum IdentityFileError {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A file exists already. It is not overwritten, since it may hold the only copy of a key.
    #[error("{path} exists already", path = .path.display())]
    Exists { path: PathBuf },
    /// A file is larger than any that belongs here.
    #[error("{path} is larger than {MAX_FILE_BYTES} bytes", path = .path.display())]
    TooLarge { path: PathBuf },
    /// A file has other contents than expected.
    #[error("{path} does not hold {what}", path = .path.display())]
    Content { path: PathBuf, what: &'static str },
    /// The folder has no agent, or several of which one must be chosen.
    #[error(
        "{dir} has {}; say which agent is meant",
        if .names.is_empty() { "no agent's certificate".to_owned() } else { format!("several agents ({})", .names.join(", ")) },
        dir = .dir.display()
    )]
    WhichAgent { dir: PathBuf, names: Vec<String> },
    /// Files cannot be named after this agent.
    #[error("an agent whose files are in a folder cannot be called {0:?}")]
    ReservedName(String),
    /// The agent's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The files do not make an identity.
    #[error("{dir}: agent {name}", dir = .dir.display())]
    Identity { dir: PathBuf, name: String, source: IdentityError },
    /// The files do not make an authority.
    #[error("{dir}: the authority", dir = .dir.display())]
    Authority { dir: PathBuf, source: AuthorityError },
}

impl IdentityFileError {
    fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, source }
    }

    fn content(dir: &Path, file: impl AsRef<Path>, what: &'static str) -> Self {
        let path = dir.join(file);
        Self::Content { path, what }
    }
}

impl Identity {
    /// Reads the identity of the only agent that has files in `dir`.
    ///
    /// # Errors
    /// [`IdentityFileError`]; if there are several agents, [`WhichAgent`](IdentityFileError::WhichAgent) lists them for
    /// [`load_agent`](Self::load_agent).
    pub fn load(dir: impl AsRef<Path>) -> Result<Self, IdentityFileError> {
        let dir = dir.as_ref();
        let names = names_in(dir)?;
        match &names[..] {
            [name] => load(dir, name),
            _ => Err(IdentityFileError::WhichAgent { dir: dir.to_owned(), names }),
        }
    }

    /// Reads the identity of the agent called `name`.
    pub fn load_agent(dir: impl AsRef<Path>, name: &ServiceName) -> Result<Self, IdentityFileError> {
        load(dir.as_ref(), file_stem(name)?)
    }

    /// Writes the certificate, the key, the authority's certificate and the ticket key into `dir`, and creates the
    /// folder if necessary. The last two files may exist already with the same contents.
    ///
    /// # Errors
    /// [`IdentityFileError`]; nothing that exists is overwritten.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), IdentityFileError> {
        let dir = dir.as_ref();
        let name = file_stem(&self.peer().service)?;
        make_dir(dir)?;
        save_shared(dir, &self.authority_pem(), self.ticket_secret())?;
        let (chain, key) = (self.certificates_pem(), self.expose_key_pem());
        write_new(dir.join(format!("{name}.key")), key, SECRET)?;
        write_new(dir.join(format!("{name}.pem")), chain, PUBLIC)
    }
}

impl Authority {
    /// Reads an authority, so that it can issue further certificates.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self, IdentityFileError> {
        let dir = dir.as_ref();
        let path = dir.join(AUTHORITY_KEY);
        warn_if_open(&path);
        let key = String::from_utf8(read(&path)?);
        let key = key.map_err(|_| IdentityFileError::content(dir, AUTHORITY_KEY, PRIVATE_KEY))?;
        let certificates = pem::decode(&read(&dir.join(AUTHORITY_CERTIFICATE))?);
        let certificate = certificates.and_then(|all| all.into_iter().next());
        let certificate = certificate.ok_or_else(|| no_authority(dir))?;
        let authority = Self::from_parts(certificate, &key, read_ticket_secret(dir)?);
        authority.map_err(|source| IdentityFileError::Authority { dir: dir.to_owned(), source })
    }

    /// Writes the authority's certificate and key and the ticket key into `dir`.
    ///
    /// # Errors
    /// [`IdentityFileError`]; nothing that exists is overwritten.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), IdentityFileError> {
        let dir = dir.as_ref();
        make_dir(dir)?;
        let key = self.issuer.key().serialize_pem();
        write_new(dir.join(AUTHORITY_KEY), key, SECRET)?;
        let authority = pem::encode_all(std::slice::from_ref(self.certificate()));
        save_shared(dir, &authority, &self.ticket_secret)
    }
}

/// Returns the names of agents with a certificate in `dir`, in alphabetical order.
///
/// # Errors
/// [`IdentityFileError::Io`].
pub fn names_in(dir: impl AsRef<Path>) -> Result<Vec<String>, IdentityFileError> {
    let of_agent = |path: PathBuf| {
        let stem = path.file_name()?.to_str()?.strip_suffix(".pem")?;
        (stem != AUTHORITY && stem.parse::<ServiceName>().is_ok()).then(|| stem.to_owned())
    };
    let paths = paths_in(dir.as_ref())?.into_iter();
    let mut names: Vec<_> = paths.filter_map(of_agent).collect();
    names.sort_unstable();
    Ok(names)
}

fn paths_in(dir: &Path) -> Result<Vec<PathBuf>, IdentityFileError> {
    let io = |source| IdentityFileError::io(dir, source);
    let entries = fs::read_dir(dir).map_err(io)?;
    entries.map(|entry| Ok(entry.map_err(io)?.path())).collect()
}

pub(super) struct Contents {
    pub(super) origin: Renewals,
    /// The agent's certificates, its key, and the authorities' certificates.
    files: [Vec<u8>; 3],
    ticket_secret: TicketSecret,
}

impl Contents {
    /// Reads the files. While they are being replaced, the result may mix two generations.
    pub(super) fn read(dir: &Path, name: &str) -> Result<Self, IdentityFileError> {
        let files = [
            read(&dir.join(format!("{name}.pem")))?,
            read(&dir.join(format!("{name}.key")))?,
            read(&dir.join(AUTHORITY_CERTIFICATE))?,
        ];
        let ticket_secret = read_ticket_secret(dir)?;
        let mut digest = blake3::Hasher::new();
        // The ticket key is not included: it is read when an agent starts and never again.
        for file in &files {
            digest.update(&(file.len() as u64).to_le_bytes());
            digest.update(file);
        }
        let digest = *digest.finalize().as_bytes();
        let (dir, name) = (dir.to_owned(), name.to_owned());
        Ok(Self { origin: Renewals { dir, name, digest }, files, ticket_secret })
    }

    pub(super) fn parse(self) -> Result<Identity, IdentityFileError> {
        let Renewals { dir, name, .. } = self.origin.clone();
        let content = |end, what| IdentityFileError::content(&dir, format!("{name}.{end}"), what);
        let [chain, key, authorities] = &self.files;
        let chain = pem::decode(chain).ok_or_else(|| content("pem", "certificates in PEM"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| content("key", PRIVATE_KEY))?;
        let authorities = pem::decode(authorities).filter(|all| !all.is_empty());
        let authorities = authorities.ok_or_else(|| no_authority(&dir))?;
        let identity = Identity::new(chain, key, authorities, self.ticket_secret);
        let mut identity = identity.map_err(|source| IdentityFileError::Identity { dir, name, source })?;
        identity.origin = Some(self.origin.into());
        Ok(identity)
    }
}

fn no_authority(dir: &Path) -> IdentityFileError {
    IdentityFileError::content(dir, AUTHORITY_CERTIFICATE, "a certificate in PEM")
}

fn load(dir: &Path, name: &str) -> Result<Identity, IdentityFileError> {
    for key in [format!("{name}.key"), TICKET_KEY.to_owned()] {
        warn_if_open(&dir.join(key));
    }
    Contents::read(dir, name)?.parse()
}

fn file_stem(name: &ServiceName) -> Result<&str, IdentityFileError> {
    match name.as_str() {
        AUTHORITY | "ticket" => Err(IdentityFileError::ReservedName(name.to_string())),
        name => Ok(name),
    }
}

fn read_ticket_secret(dir: &Path) -> Result<TicketSecret, IdentityFileError> {
    let bytes = <[u8; TicketSecret::BYTES]>::try_from(read(&dir.join(TICKET_KEY))?);
    let what = "a ticket key: exactly 32 bytes";
    let bytes = bytes.map_err(|_| IdentityFileError::content(dir, TICKET_KEY, what));
    bytes.map(TicketSecret::from)
}

fn save_shared(dir: &Path, authority: &str, ticket_secret: &TicketSecret) -> Result<(), IdentityFileError> {
    let (certificate, key) = (dir.join(AUTHORITY_CERTIFICATE), dir.join(TICKET_KEY));
    write_same(&certificate, authority.as_bytes(), PUBLIC)?;
    write_same(&key, ticket_secret.as_bytes(), SECRET)
}

/// Creates a folder that only its owner may enter, whatever the umask. An existing folder is not changed: it may have
/// other contents, and the key files have safe modes themselves.
fn make_dir(dir: &Path) -> Result<(), IdentityFileError> {
    let io = |source| IdentityFileError::io(dir, source);
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    match fs::DirBuilder::new().mode(FOLDER).create(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(FOLDER)).map_err(io),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(io(error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityFileError> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map(|file| file.take(MAX_FILE_BYTES + 1));
    let read = file.and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|source| IdentityFileError::io(path, source))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(IdentityFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// Writes a new file. Fails if it exists.
fn write_new(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>, mode: u32) -> Result<(), IdentityFileError> {
    let path = path.as_ref();
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        if mode == SECRET {
            // The umask may have removed the owner's own permissions.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.write_all(bytes.as_ref())?;
        file.sync_all()
    };
    write().map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => IdentityFileError::Exists { path: path.to_owned() },
        _ => IdentityFileError::io(path, source),
    })
}

/// Writes a file, which may exist with the same contents.
fn write_same(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityFileError> {
    match write_new(path, bytes, mode) {
        Err(IdentityFileError::Exists { .. }) if read(path)? == bytes => Ok(()),
        other => other,
    }
}

/// Returns the keys in `dir` that users other than their owner can read, each with its mode.
///
/// # Errors
/// [`IdentityFileError::Io`].
pub fn open_keys(dir: impl AsRef<Path>) -> Result<Vec<(PathBuf, u32)>, IdentityFileError> {
    let mut keys = paths_in(dir.as_ref())?;
    keys.retain(|path| path.extension().is_some_and(|end| end == "key"));
    let open = |path: PathBuf| open_mode(&path).map(|mode| (path, mode));
    let mut keys: Vec<_> = keys.into_iter().filter_map(open).collect();
    keys.sort_unstable();
    Ok(keys)
}

/// Returns the mode of a key if others can read it. A file of another owner may be readable by its group, since
/// container platforms mount secrets like that.
fn open_mode(path: &Path) -> Option<u32> {
    let metadata = fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    let others = if ours { 0o077 } else { 0o007 };
    (mode & others != 0).then_some(mode)
}

/// Logs a warning if others can read a secret. It is no error, because container platforms often choose the modes of
/// mounted secrets.
fn warn_if_open(path: &Path) {
    if let Some(mode) = open_mode(path) {
        tracing::warn!(
            path = %path.display(),
            mode = format_args!("{mode:o}"),
            "a secret key is readable by others; chmod 600 it"
        );
    }
}
