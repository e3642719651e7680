//! `transload store check`: whether a backend keeps the contract of kv_store_v1.

use std::path::PathBuf;

use clap::ValueHint;

use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  transload store check file:///tmp/scratch
  KV_STORE_LIBRARY_PATH=. transload store check foo://host/scratch
  transload store check foo://host/scratch --library ./libkv_store_foo.so --item atomic

Give it a store of its own: it writes, overwrites and deletes there. Exit code 1 means that the backend
does not keep the contract.";

/// Check whether a backend keeps the contract of kv_store_v1, item by item.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A store for the check alone.
    uri: String,

    /// The library to check, whatever the URI's scheme.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    library: Option<PathBuf>,

    /// Check only the items whose name contains this; may be repeated.
    #[arg(long = "item", value_name = "NAME")]
    items: Vec<String>,
}

pub(super) fn run(_args: Args, _output: &mut Output) -> Result<(), Failure> {
    Err(Failure::input("not built yet", "wait"))
}
