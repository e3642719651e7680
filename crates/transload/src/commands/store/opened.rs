//! A store that a command has opened, and the messages of its failures.

use std::sync::Arc;

use transload::store::backend::{Inventory, Progress as Step};
use transload::store::{Backend, ManifestName, StoreError};

use crate::failure::{Failure, chain};
use crate::show::progress::Progress;
use crate::show::text;

pub(in crate::commands) fn open(uri: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Store::open(uri)?.backend)
}

pub(super) struct Store {
    pub(super) uri: String,
    pub(super) backend: Arc<dyn Backend>,
}

impl Store {
    /// Opens an existing store. Inspecting a store never creates one.
    pub(super) fn existing(uri: &str) -> Result<Self, Failure> {
        Self::opened(uri, transload::store::open_existing(uri))
    }

    pub(super) fn open(uri: &str) -> Result<Self, Failure> {
        Self::opened(uri, transload::store::open(uri))
    }

    fn opened(uri: &str, backend: Result<Arc<dyn Backend>, StoreError>) -> Result<Self, Failure> {
        let backend = backend.map_err(|error| match error {
            StoreError::Uri(error) => Failure::input(
                error.to_string(),
                "name a store as file:///absolute/path, redis://host/0 or s3://bucket/prefix",
            ),
            StoreError::NotThere { .. } => Failure::input(
                format!("there is no store at {uri}, nor above it"),
                "check the URI; the first save creates a store",
            ),
            // The reason says why opening is not possible.
            StoreError::Unsupported { why, .. } => Failure::input(
                format!("{uri} cannot be opened: {why}"),
                "`transload store --help` lists the forms of URIs",
            ),
            // The error itself says what to do; anything else depends on the scheme.
            error => Failure::input(
                format!("{uri} cannot be opened: {}", chain(&error)),
                "check that the store exists and that you may access it; `transload store --help` lists the forms of \
                 URIs",
            ),
        })?;
        Ok(Self { uri: uri.to_owned(), backend })
    }

    pub(super) fn inventory(&self) -> Result<&dyn Inventory, Failure> {
        self.backend.inventory().ok_or_else(|| {
            Failure::input(
                format!("the library behind {} cannot list its contents: kv_store_v1 has no call for that", self.uri),
                "use the tools of the library's vendor; only `transload store show`, `rm` and `check` work with \
                 every library",
            )
        })
    }

    /// Returns advice about a missing manifest.
    pub(super) fn what_it_has(&self) -> String {
        match self.backend.inventory() {
            Some(_) => format!("`transload store ls {}` lists the existing ones", self.uri),
            None => "check the name; the library behind this store cannot list its manifests".to_owned(),
        }
    }

    pub(super) fn failed(&self, error: &StoreError) -> Failure {
        let wrong = format!("{}: {}", self.uri, chain(error));
        match error {
            StoreError::Damaged { .. } => {
                Failure::no(wrong, "put the value again or delete it; `transload store verify` lists all damage")
            }
            StoreError::Full { .. } => Failure::no(
                wrong,
                "free space with `transload store gc --cap`, or set a \
                                                           larger cap",
            ),
            StoreError::Locked { .. } => Failure::no(
                wrong,
                "try again when the collection or save that holds the lock has ended, or wait longer \
                 (TRANSLOAD_FILE_LOCK_TIMEOUT, for example 10min); `lslocks` shows the process",
            ),
            _ => Failure::input(wrong, "check that the store still exists and that you may access it"),
        }
    }
}

/// Returns a function that shows the steps of a long operation on the progress bar.
pub(super) fn follow(bar: &Progress) -> impl FnMut(Step) {
    let mut last = "";
    move |step| {
        if step.step != last {
            last = step.step;
            bar.say(step.step.to_owned());
        }
        bar.reach_of(step.done, step.total);
    }
}

/// Returns a manifest's name for display; the empty name is shown as quotes.
pub(super) fn printable(name: &ManifestName) -> String {
    match name.as_str() {
        "" => "\"\"".to_owned(),
        name => text::printable(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_no_harm_to_terminals() {
        for (name, shown) in [("slot1/m", "slot1/m"), ("", "\"\""), ("a\nb's\u{1b}[2J", "a\\nb's\\u{1b}[2J")] {
            let name = ManifestName::new(name).expect("a name");
            assert_eq!(printable(&name), shown);
        }
    }
}
