//! How a file store is opened.

use std::time::Duration;

use crate::error::StoreError;
use crate::period;

/// How to open a file store.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// What all files of the store may take together, in bytes. When a save needs more, the least recently
    /// used manifests go with what only they refer to. All handles of a store have to be opened with the same
    /// cap: one without does not know of it. None unless set.
    pub cap: Option<u64>,
    /// How long chunks that no manifest refers to stay after their last use when the cap makes something go,
    /// as in [`CollectOptions::grace`](crate::backend::CollectOptions::grace). When nothing else is left to go they do
    /// not even stay that long. One hour unless set.
    pub grace: Duration,
    /// How long a call waits for a lock that somebody else holds before it is [`StoreError::Locked`]. Longer than a
    /// collection takes, or saves fail while one runs. One minute unless set.
    pub lock_timeout: Duration,
    /// Whether a store that is made here is for the group of its folder, too: files 0660 and folders 2770, instead of
    /// 0600 and 0700. A store that is there stays what it is. False unless set.
    pub group: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { cap: None, grace: Duration::from_secs(3600), lock_timeout: Duration::from_secs(60), group: false }
    }
}

impl FileOptions {
    /// The environment variable that [`from_env`](Self::from_env) reads.
    pub const CAP_VARIABLE: &str = "TRANSLOAD_FILE_CAP";

    /// The environment variable that says whether a store that is made is for a group.
    pub const GROUP_VARIABLE: &str = "TRANSLOAD_FILE_GROUP";

    /// The environment variable that says how long a call waits for a lock.
    pub const LOCK_TIMEOUT_VARIABLE: &str = "TRANSLOAD_FILE_LOCK_TIMEOUT";

    /// With the cap that `TRANSLOAD_FILE_CAP` names, as `500GiB`, `1.5TiB` or `4096B`; for a group if
    /// `TRANSLOAD_FILE_GROUP` is `1`; with the [`lock_timeout`](Self::lock_timeout) of `TRANSLOAD_FILE_LOCK_TIMEOUT`,
    /// as `90s`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if one is set and not of that form.
    pub fn from_env() -> Result<Self, StoreError> {
        let mut options = Self::default();
        if let Some(text) = std::env::var_os(Self::GROUP_VARIABLE) {
            options.group = match text.to_str() {
                Some("1") => true,
                Some("0" | "") => false,
                _ => {
                    return Err(StoreError::Unsupported {
                        what: "a setting from the environment",
                        why: format!("{} is 0 or 1", Self::GROUP_VARIABLE),
                    });
                }
            };
        }
        if let Some(text) = std::env::var_os(Self::LOCK_TIMEOUT_VARIABLE) {
            let text = text.to_string_lossy();
            options.lock_timeout = period::parse_limit(&text).map_err(|why| StoreError::Unsupported {
                what: "a setting from the environment",
                why: format!("{}={text}: {why}", Self::LOCK_TIMEOUT_VARIABLE),
            })?;
        }
        options.cap = crate::size::from_env(Self::CAP_VARIABLE)?;
        Ok(options)
    }
}
