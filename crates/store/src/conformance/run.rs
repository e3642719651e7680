//! Runs items in this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::{Border, Context, Open};
use super::item::Item;
use super::options::Options;
use super::outcome::Stop;
use super::report::{Finding, Report};
use super::{border, chunks, large, manifests, model, names, outlives, outputs, publish, threads};
use crate::loader::{Library, LoadError};
use crate::uri::StoreUri;

/// Returns every item in a sensible order. Those of the [C border](Item::border) come first.
pub fn items() -> impl Iterator<Item = &'static Item> {
    [
        border::ITEMS,
        outputs::ITEMS,
        chunks::ITEMS,
        manifests::ITEMS,
        names::ITEMS,
        publish::ITEMS,
        outlives::ITEMS,
        threads::ITEMS,
        model::ITEMS,
        large::ITEMS,
    ]
    .into_iter()
    .flatten()
}

pub(super) fn chosen(options: &Options) -> impl Iterator<Item = &'static Item> {
    let is_chosen = |item: &Item| options.only.iter().any(|part| item.name.contains(part.as_str()));
    items()
        .filter(|item| options.border || !item.border)
        // Always include the item that loads the library. A selection must not pass if the library does not load.
        .filter(move |item| {
            let loads = options.border && item.name == border::LOADS;
            options.only.is_empty() || is_chosen(item) || loads
        })
}

/// Returns the item of this name.
pub fn item(name: &str) -> Option<&'static Item> {
    items().find(|item| item.name == name)
}

/// Checks a backend in this process. `open` must open the same store at each call.
///
/// A panic of the backend is a failure of the current item. A call that never returns blocks the check.
pub fn check(open: &Open<'_>, options: &Options) -> Report {
    let findings = chosen(options)
        .filter(|item| !item.border && !item.processes)
        .map(|item| run_item(item, open, options))
        .collect();
    Report::new(options.seed, findings)
}

/// Checks a library in this process, including its C border. A library that crashes ends the process;
/// [`check_in_children`](super::check_in_children) avoids that.
pub fn check_library(path: &Path, uri: &StoreUri, options: &Options) -> Report {
    let findings =
        chosen(options).filter(|item| !item.processes).map(|item| run_library_item(item, path, uri, options)).collect();
    Report::new(options.seed, findings)
}

/// Runs one item on a backend in Rust.
pub fn run_item(item: &'static Item, open: &Open<'_>, options: &Options) -> Finding {
    run(item, &Context::new(open, options, None))
}

/// Runs one item on a library.
pub fn run_library_item(item: &'static Item, path: &Path, uri: &StoreUri, options: &Options) -> Finding {
    let loaded = Library::load(path).map(|library| (library, path.to_owned()));
    run_loaded_item(item, loaded, uri, options)
}

/// Runs one item on the library that the system finds for the URI's scheme. If there is none, every item is skipped,
/// even the one that loads the library.
pub(super) fn run_found_item(item: &'static Item, uri: &StoreUri, options: &Options) -> Finding {
    let loaded = Library::find(uri.scheme()).map(|library| {
        let path = library.path().to_owned();
        (library, path)
    });
    run_loaded_item(item, loaded, uri, options)
}

fn run_loaded_item(
    item: &'static Item,
    loaded: Result<(Arc<Library>, PathBuf), LoadError>,
    uri: &StoreUri,
    options: &Options,
) -> Finding {
    let (library, path) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            let stop = match &error {
                LoadError::NotFound { .. } => Stop::Skip(error.to_string()),
                _ if item.name == border::LOADS => Stop::Broken(error.to_string()),
                _ => Stop::Skip(format!("the library does not load: {error}")),
            };
            return Finding::new(item, Err(stop), options);
        }
    };
    let border = Border { library: Arc::clone(&library), path, uri: uri.clone() };
    let open = || -> Result<Arc<dyn crate::Backend>, crate::StoreError> { Ok(Arc::new(library.open(uri)?)) };
    run(item, &Context::new(&open, options, Some(border)))
}

fn run(item: &'static Item, context: &Context<'_>) -> Finding {
    let outcome = catch_unwind(AssertUnwindSafe(|| (item.run)(context)));
    let outcome = outcome.unwrap_or_else(|payload| {
        let said = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Stop::Broken(format!("the backend panicked: {said}")))
    });
    let mut finding = Finding::new(item, outcome, context.options());
    finding.left = context.clean_up();
    finding
}
