//! The commands, one module each, with its arguments and its implementation.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

mod bench;
mod certs;
mod demo;
#[cfg(feature = "sidecar")]
mod disaggregate;
mod engines;
mod inspect;
mod model;
mod plan;
mod random;
mod shapes;
mod store;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Inspect(inspect::Args),
    Plan(Box<plan::Args>),
    Demo(demo::Args),
    Certs(certs::Args),
    Bench(bench::Args),
    Store(store::Args),
    #[cfg(feature = "sidecar")]
    Sidecar(disaggregate::sidecar::Args),
    #[cfg(feature = "sidecar")]
    Proxy(disaggregate::proxy::Args),
    #[cfg(feature = "sidecar")]
    Announce(disaggregate::announce::Args),
    /// The second process of the demo and of benches.
    #[command(name = engines::SOURCE_PROCESS, hide = true)]
    SourceProcess,
}

pub(crate) fn run(command: Command, output: &mut Output) -> Result<(), Failure> {
    if output.is_csv() && !matches!(command, Command::Plan(_)) {
        return Err(Failure::input(
            "only `transload plan` supports --format csv",
            "use --format table or --format json",
        ));
    }
    match command {
        Command::Inspect(args) => inspect::run(args, output),
        Command::Plan(args) => plan::run(*args, output),
        Command::Demo(args) => demo::run(args, output),
        Command::SourceProcess => engines::runtime()?.block_on(engines::run_source()),
        Command::Certs(args) => certs::run(args, output),
        Command::Bench(args) => bench::run(args, output),
        Command::Store(args) => store::run(args, output),
        #[cfg(feature = "sidecar")]
        Command::Sidecar(args) => disaggregate::sidecar::run(&args),
        #[cfg(feature = "sidecar")]
        Command::Proxy(args) => disaggregate::proxy::run(&args),
        #[cfg(feature = "sidecar")]
        Command::Announce(args) => disaggregate::announce::run(args),
    }
}
