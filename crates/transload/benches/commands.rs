//! Measures the offline commands as whole processes, for a model of 128 layers and a million tokens. Run with `cargo
//! bench -p transload --bench commands`.
//!
//! Each figure is compared with `transload --version`, a process that does nothing, measured in turns with it. The
//! project's limit is 50 ms.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_millis(50);

const ROUNDS: usize = 15;

/// A Llama-like model with as many layers as the largest models have.
const CONFIG: &str = r#"{"model_type": "llama", "num_hidden_layers": 128, "hidden_size": 16384,
    "num_attention_heads": 128, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}"#;

const SIDES: [&str; 4] = ["--from-side", "tp=4,block=16,order=NHD", "--to-side", "tp=8,block=64,order=HND"];

const WIDE: [&str; 4] = ["--from-side", "tp=8,block=16,order=NHD", "--to-side", "tp=64,block=64,order=HND"];

fn main() {
    let dir = std::env::temp_dir().join(format!("transload-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join("config.json"), CONFIG).expect("a config");
    let plan = |sides: [&'static str; 4], more: &[&'static str]| {
        let start = ["plan", "config.json", "--tokens", "1000000"];
        [&start[..], &sides, more].concat()
    };
    let cases = [
        ("inspect", vec!["inspect", "config.json", "--tp", "8", "--tokens", "1000000"]),
        ("plan, TP 4 to 8", plan(SIDES, &[])),
        ("plan, blocks scattered", plan(SIDES, &["--scattered"])),
        ("plan, TP 8 to 64, scattered", plan(WIDE, &["--scattered"])),
        ("plan --suggest", plan(SIDES, &["--suggest"])),
        ("plan --suggest, all at once", plan(WIDE, &["--suggest", "--scattered", "--link", "100Gbit"])),
        ("plan --svg", plan(SIDES, &["--svg", "plan.svg"])),
    ];
    println!(" {:<30} {:>9} {:>9} {:>12}", "command", "median", "nothing", "of the limit");
    for (name, args) in cases {
        let (mut times, mut nothing) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            nothing.push(run(&dir, &["--version"]));
            times.push(run(&dir, &args));
        }
        let (time, nothing) = (median(times), median(nothing));
        println!(
            " {name:<30} {:>6.1} ms {:>6.1} ms {:>12.2}",
            time.as_secs_f64() * 1e3,
            nothing.as_secs_f64() * 1e3,
            time.as_secs_f64() / LIMIT.as_secs_f64(),
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
}

fn run(dir: &Path, args: &[&str]) -> Duration {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transload"));
    command.current_dir(dir).args(args).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("the command starts");
    let time = begun.elapsed();
    assert!(status.success(), "{args:?}");
    time
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
