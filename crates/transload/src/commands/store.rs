//! `transload store`: lists, verifies and cleans up stores.

mod archive;
mod check;
mod contents;
mod gc;
mod kvc;
mod llama;
mod ls;
mod needed;
mod objects;
mod opened;
mod records;
mod rm;
mod show;
mod time;
mod verify;

use clap::Subcommand;

pub(super) use self::opened::open;
use self::opened::{Store, follow, printable};
use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  transload store ls file:///var/kv
  transload store show file:///var/kv slot0
  transload store rm file:///var/kv slot0
  transload store verify redis://cache:6379/0
  transload store gc s3://bucket/kv --grace 2h --cap 500GiB --dry-run
  transload store check foo://host/scratch --library ./libkv_store_foo.so
  transload store kvc verify 60c36f2f.kvc
  transload store llama inspect slot0.bin

A URI is one of
  file:///absolute/path
  redis://host[:port][/db[/prefix]], or rediss://… with TLS
  s3://bucket/prefix
  memory://   the memory of one process
  tier://[CAP=]URI,…  several stores, the fastest first, for example
              tier://8GiB=memory://,500GiB=file:///var/kv,s3://bucket/kv;
              tier+back:// writes the tiers below the first persistent
              one in the background
  SCHEME://…  any other scheme, with a library libkv_store_SCHEME.so in
              a folder of KV_STORE_LIBRARY_PATH (which also overrides
              built-in backends) or where the system finds libraries

Passwords and keys come from the environment, never from the URI.";

/// Inspect, verify and clean up a store, and check other backends.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Ls(ls::Args),
    Show(show::Args),
    Rm(rm::Args),
    Verify(verify::Args),
    Gc(gc::Args),
    Check(check::Args),
    Kvc(kvc::Args),
    Llama(llama::Args),
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    match args.action {
        Action::Ls(args) => ls::run(&args, output),
        Action::Show(args) => show::run(&args, output),
        Action::Rm(args) => rm::run(&args, output),
        Action::Verify(args) => verify::run(&args, output),
        Action::Gc(args) => gc::run(&args, output),
        Action::Check(args) => check::run(args, output),
        Action::Kvc(args) => kvc::run(args, output),
        Action::Llama(args) => llama::run(&args, output),
    }
}
