//! `cuda/*_on_cpu.c`: the kernels' sources, compiled for the CPU with sanitizers, in a process of its own each time.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::launch::Launch;
use crate::sum::Fold;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bytes {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Done {
    pub(super) bytes: Vec<u8>,
    /// The number of writes to each byte.
    pub(super) writes: Vec<u8>,
}

/// Runs launches one after the other, each with that many warps, whose threads run in an order shuffled by `seed`.
///
/// Returns `None`, and prints why, if there is no C compiler.
pub(super) fn run(memories: &[Bytes], launches: &[Launch], warps: u64, seed: u64) -> Option<Vec<Done>> {
    let mut input = Vec::new();
    let number = |input: &mut Vec<u8>, number: u64| input.extend(number.to_ne_bytes());
    number(&mut input, seed);
    number(&mut input, memories.len() as u64);
    for memory in memories {
        number(&mut input, memory.address);
        number(&mut input, memory.bytes.len() as u64);
        input.extend(&memory.bytes);
    }
    number(&mut input, launches.len() as u64);
    for launch in launches {
        number(&mut input, launch.entry as u64);
        number(&mut input, warps);
        input.extend(bytemuck::bytes_of(&launch.parameters));
    }
    static PROGRAM: Program = Program::new();
    let output = feed(program(&PROGRAM, "walk_on_cpu")?, input);
    let mut rest = &output[..];
    let mut take = |len| {
        let (taken, left) = rest.split_at(len);
        rest = left;
        taken.to_vec()
    };
    Some(
        memories
            .iter()
            .map(|memory| Done { bytes: take(memory.bytes.len()), writes: take(memory.bytes.len()) })
            .collect(),
    )
}

/// Returns `None`, and prints why, if there is no C compiler.
pub(super) fn fold(threads: u32, fold: Fold, text: &[u8]) -> Option<Vec<u8>> {
    static PROGRAM: Program = Program::new();
    let mut input = u64::from(threads).to_ne_bytes().to_vec();
    input.extend(bytemuck::bytes_of(&fold));
    input.extend((text.len() as u64).to_ne_bytes());
    input.extend(text);
    Some(feed(program(&PROGRAM, "crc32c_on_cpu")?, input))
}

fn feed(program: &Path, input: Vec<u8>) -> Vec<u8> {
    let mut child = Command::new(program)
        // A sanitizer's leak check would fail here: the process ends with all of its memory in use.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The program may end before it has read everything, with a more telling error than this one.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    output.stdout
}

type Program = OnceLock<Option<(TempDir, PathBuf)>>;

fn program(compiled: &'static Program, name: &str) -> Option<&'static Path> {
    let made = compiled.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cuda");
        let source = sources.join(name).with_extension("c");
        let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let compile = |extra: &[&str]| {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
            cc.args(extra).arg(&source).arg("-o").arg(&program).output()
        };
        match compile(&sanitizers) {
            Err(error) => {
                eprintln!("NOT RUN: cc: {error}; install a C compiler");
                return None;
            }
            Ok(output) if !output.status.success() => {
                eprintln!("NOT RUN: the sanitizers of cc: {}", String::from_utf8_lossy(&output.stderr));
                let output = compile(&[]).unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(_) => {}
        }
        Some((folder, program))
    });
    made.as_ref().map(|(_, program)| program.as_path())
}
