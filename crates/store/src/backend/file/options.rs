//! Options of a file store.

use std::time::Duration;

use crate::error::StoreError;
use crate::period;

/// Options for opening a file store.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The maximum total size of the store's files, in bytes. When a save needs more, the least recently used manifests
    /// are evicted, with the chunks that only they refer to. Open all handles of a store with the same cap, because a
    /// handle without one does not enforce it. The default is no cap.
    pub cap: Option<u64>,
    /// The time that chunks without references stay after their last use when the cap forces a collection, as in
    /// [`CollectOptions::grace`](crate::backend::CollectOptions::grace). If nothing else can be removed, they are
    /// removed earlier. The default is one hour.
    pub grace: Duration,
    /// The time that a call waits for a lock before it fails with [`StoreError::Locked`]. It should be longer than a
    /// collection takes, or else saves fail while one runs. The default is one minute.
    pub lock_timeout: Duration,
    /// Whether a store that this call creates is also accessible to the group of its folder: files have mode 0660 and
    /// folders 2770, instead of 0600 and 0700. An existing store keeps its modes. The default is false.
    pub group: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { cap: None, grace: Duration::from_secs(3600), lock_timeout: Duration::from_secs(60), group: false }
    }
}

impl FileOptions {
    /// The environment variable of the cap.
    pub const CAP_VARIABLE: &str = "TRANSLOAD_FILE_CAP";

    /// The environment variable of [`group`](Self::group).
    pub const GROUP_VARIABLE: &str = "TRANSLOAD_FILE_GROUP";

    /// The environment variable of [`lock_timeout`](Self::lock_timeout).
    pub const LOCK_TIMEOUT_VARIABLE: &str = "TRANSLOAD_FILE_LOCK_TIMEOUT";

    /// Reads options from the environment: the cap from `TRANSLOAD_FILE_CAP` (`500GiB`, `1.5TiB`, `4096B`),
    /// [`group`](Self::group) from `TRANSLOAD_FILE_GROUP` (`0` or `1`), and [`lock_timeout`](Self::lock_timeout) from
    /// `TRANSLOAD_FILE_LOCK_TIMEOUT` (`90s`).
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if a variable is set to an invalid value.
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
