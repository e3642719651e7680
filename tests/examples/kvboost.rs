//! Replays recordings of KVBoost: `cargo run -p transload-tests --example kvboost -- FOLDER`.
//!
//! It takes every file of the folder that has the name of one, and ends with `N of M agree`, and exit code 0 if all do and
//! there are any.

use std::process::ExitCode;

use anyhow::{Context, Error};
use transload_tests::kvboost::{Agreement, replay};

fn main() -> anyhow::Result<ExitCode> {
    let folder = std::env::args_os().nth(1).context("name a folder of recordings")?;
    let mut all = Agreement::default();
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".json") {
            continue;
        }
        let recorded = std::fs::read_to_string(file.path())?;
        if let Some(some) = replay(&name, &recorded).map_err(Error::msg)? {
            println!("{name}: {} of {} agree", some.agree, some.of);
            all += some;
        }
    }
    println!("{} of {} agree", all.agree, all.of);
    Ok(match all.of > 0 && all.agree == all.of {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
