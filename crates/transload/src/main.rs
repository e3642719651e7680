//! The `transload` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    transload::command::run(Vec::new(), arguments).into()
}
