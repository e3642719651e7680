//! Commands that use a GPU, on the fake driver.

#[path = "../../../../tests/src/fake_cuda.rs"]
#[allow(dead_code, unreachable_pub)]
mod fake_cuda;

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Ran, command};

/// Runs the command with this library as the driver.
fn with_driver(library: &Path, variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    symlink(library, folder.path().join("libcuda.so.1")).expect("a link");
    let mut command = command();
    command.env("LD_LIBRARY_PATH", folder.path());
    command.env("FAKE_CUDA_DELAY_US", "5");
    command.envs(variables.iter().copied()).args(args);
    Ran::new(command.output().expect("it starts"))
}

/// Both processes and the restored data use the GPU, and every byte arrives.
#[test]
fn the_demo_uses_the_gpu() {
    let library = fake_cuda::library();
    let ran = with_driver(&library, &[], &["demo", "--tokens", "1", "--format", "json"]);
    ran.is_good();
    let json = ran.json();
    assert_eq!(json["gpu"]["ordinal"], 0);
    let name = json["gpu"]["name"].as_str().expect("a name");

    let ran = with_driver(&library, &[], &["demo", "--tokens", "256"]);
    for said in [
        &format!("All caches were in the memory of GPU 0, {name}."),
        "verified: every byte of 256 tokens, of 256 restored ones,",
    ] {
        assert!(ran.stdout.contains(said), "{}", ran.stdout);
    }
    let on_the_host = with_driver(&library, &[], &["demo", "--tokens", "1", "--host"]);
    assert_eq!(on_the_host.code, Some(0));
    assert!(!on_the_host.stdout.contains("GPU"), "{}", on_the_host.stdout);
}

/// If a GPU cannot be used from the start, the demo says so and goes on. If it fails later, that is an error.
#[test]
fn the_demo_says_what_is_wrong_with_a_gpu() {
    let library = fake_cuda::library();
    let args = ["demo", "--tokens", "1"];
    let fault = |fault| [("FAKE_CUDA_FAIL", fault)];
    let ran = with_driver(&library, &fault("cuMemHostAlloc:1:2"), &args);
    ran.is_good();
    let why = "the GPU is not used: cuMemHostAlloc gives CUDA_ERROR_OUT_OF_MEMORY (2)";
    assert!(ran.stdout.contains(why), "{}", ran.stdout);
    assert!(ran.stdout.contains("verified: every byte of 1 token"));

    let ran = with_driver(&library, &fault("cuMemAlloc_v2:3:2"), &args);
    ran.fails("CUDA_ERROR_OUT_OF_MEMORY");
    assert!(ran.told().contains("--host"), "{}", ran.stderr);
}

/// All measurements run, with and without functions that only newer drivers have, and over a network with short
/// packets.
#[test]
fn bench_gpu_measures_everything() {
    let library = fake_cuda::library();
    let (_folder, older) = fake_cuda::without(&library, &["cuMemcpyBatchAsync"]);
    let short_packets: &[&str] = &["--mtu", "1500"];
    for (library, others, network) in
        [(&library, "cuMemcpyBatchAsync", &[][..]), (&older, "cuMemcpyDtoDAsync", short_packets)]
    {
        let args = ["bench", "gpu", "--mib", "1", "--rounds", "1", "--format", "json"];
        let mut ran = with_driver(library, &[], &[&args[..], network].concat());
        if ran.told().contains("cannot create a network with an MTU of 1500") {
            eprintln!("NOT RUN: --mtu: {}", ran.told());
            ran = with_driver(library, &[], &args);
        } else if !network.is_empty() {
            assert_eq!(ran.json()["notes"][0], "over loopback with an MTU of 1500");
        }
        ran.is_good();
        let json = ran.json();
        assert_eq!(json["bench"], "gpu");
        let results = json["results"].as_array().expect("figures");
        // The figures: two for each length of runs, the canonical case, three of the bus from each of three positions,
        // four of submitting, mark and kernels, two of the ring, and agents.
        assert_eq!(results.len(), 8 + 1 + 9 + 4 + 2 + 2 + 1);
        for figure in results {
            assert!(figure["median"].as_f64() > Some(0.0), "{figure}");
            assert!(figure["ratio"].as_f64() > Some(0.0), "{figure}");
        }
        let text = json.to_string();
        assert!(text.contains(others), "{text}");
        assert!(text.contains("GPU 0: "), "{text}");
    }
}

/// Without CUDA the bench says so and fails, since nothing was measured.
#[test]
fn bench_gpu_says_that_there_is_no_cuda() {
    let library = fake_cuda::library();
    let none = with_driver(&library, &[("FAKE_CUDA_DEVICES", "0")], &["bench", "gpu"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(1), ""));
    let said = none.told();
    assert!(said.contains("no CUDA here: the driver knows no device"), "{said}");
    let args = ["bench", "gpu", "--device", "3"];
    with_driver(&library, &[], &args).fails("no device 3: this process sees 1");
}

/// With a driver's library that is empty or lacks a function, the command works as without one.
#[test]
fn a_driver_that_lacks_something_is_none() {
    let (_folder, old) = fake_cuda::without(&fake_cuda::library(), &["cuEventQuery"]);
    let empty = fake_cuda::empty();
    let libraries = [(&old, "cuEventQuery")].into_iter();
    let empty = empty.iter().map(|(_folder, empty)| (empty, "cu"));
    for (library, lacks) in libraries.chain(empty) {
        let args = ["demo", "--tokens", "1", "--format", "json"];
        let ran = with_driver(library, &[], &args);
        ran.is_good();
        assert!(ran.json()["gpu"].is_null(), "{}", ran.stdout);
        let bench = with_driver(library, &[], &["bench", "gpu"]);
        let said = bench.told();
        assert_eq!(bench.code, Some(1), "{said}");
        assert!(said.contains("no CUDA here: ") && said.contains(lacks), "{said}");
    }
}

/// If memory is lacking, the bench fails and says what the user can do.
#[test]
fn bench_gpu_tells_what_the_driver_says() {
    let library = fake_cuda::library();
    // This is all of the GPU's memory, of which some is in use.
    let ran = with_driver(&library, &[], &["bench", "gpu", "--mib", "16384"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    let said = ran.told();
    assert!(said.contains("cuMemAlloc_v2 gives CUDA_ERROR_OUT_OF_MEMORY (2)"), "{said}");
    assert!(said.contains("--mib"), "{said}");
}

/// A failed measurement is a figure with an error. Each figure is written as soon as it is measured. A batch that the
/// driver refuses is copied one by one.
#[test]
fn bench_gpu_goes_on_where_something_fails() {
    let library = fake_cuda::library();
    // The mark's copy is the first one within the GPU. Slots are checked before they are measured.
    let faults = "cuMemcpyDtoDAsync_v2:1:2,cuMemcpyBatchAsync:1:1,cuStreamWaitEvent:1:2";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("figures");
    let out = file.to_str().expect("a path");
    let args = ["bench", "gpu", "--mib", "1", "--rounds", "1", "--out", out, "--format", "json"];
    let ran = with_driver(&library, &[("FAKE_CUDA_FAIL", faults)], &args);
    ran.fails("some figures could not be measured");
    let json = ran.json();
    let results = json["results"].as_array().expect("figures");
    let failed: Vec<_> = results.iter().filter(|figure| !figure["error"].is_null()).collect();
    let names: Vec<_> = failed.iter().map(|figure| &figure["name"]).collect();
    assert_eq!(
        names,
        [
            "runs of 512 B, sent through slots of the GPU",
            "from a mark to its first piece of 1 MiB in pinned memory",
            "through its slots without sums, runs of 512 B",
        ]
    );
    let failed = failed[1];
    assert!(failed["error"].as_str().is_some_and(|why| why.contains("OUT_OF_MEMORY")));
    assert!(failed["median"].is_null() && failed["baseline"]["figure"].as_f64() > Some(0.0));
    let by = |function| move |figure: &&serde_json::Value| figure["baseline"]["name"].to_string().contains(function);
    assert_eq!(results.iter().filter(by("cuMemcpyDtoDAsync")).count(), 1);
    assert_eq!(results.iter().filter(by("cuMemcpyBatchAsync")).count(), 3 + 4);
    let told = std::fs::read_to_string(file).expect("figures");
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(&told, results);
}
