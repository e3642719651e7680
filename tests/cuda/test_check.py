"""`cuda/pack` and `cuda/check` where there is no GPU: on the fake driver of the tests, and without any driver."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACK = [ROOT / "cuda/pack", "--profile", "dev"]
PARTS = [
    *("machine", "registered-memfd", "shared-descriptors", "compilation", "ceilings", "sweep", "queues", "plans", "agents"),
    *("lost", "graph", "bench", "torch-decode", "processes", "torch-engine", "engine", "slices", "torch", "decode", "sanitizer"),
]
# What the fake driver does not do, or this machine may not have.
MAY_BE_MISSING = {"engine", "torch-engine", "graph", "torch", "torch-decode", "sanitizer"}


@pytest.fixture(scope="session")
def pack(tmp_path_factory):
    """A pack of the programs that the workspace's tests have built, and of the wheel where `./test` has made one."""
    to = tmp_path_factory.mktemp("cuda") / "pack"
    wheel = next((ROOT / "target/wheel").glob("*.whl"), "none")
    # Code that is not optimized is larger.
    subprocess.run([*PACK, "--wheel", wheel, "--to", to, "--mib", "100"], check=True)
    return to


@pytest.fixture(scope="session")
def fake():
    """The fake driver's file."""
    command = ["cargo", "build", "-p", "transload-fake-cuda", "--message-format", "json"]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    files = [file for line in said.splitlines() for file in json.loads(line).get("filenames", [])]
    return next(file for file in files if file.endswith("/libfake_cuda.so"))


@pytest.fixture(scope="session")
def check(pack, fake, tmp_path_factory):
    """Runs the check, and gives how it ended, with the outcome of each part."""

    def run(*arguments, driver=fake, **variables):
        out = tmp_path_factory.mktemp("results") / "results.json"
        # By this Python, which has what the connector's tests need.
        command = [sys.executable, pack / "check", "--small", "--driver", driver, "--out", out, *arguments]
        environment = {**os.environ, **variables}
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
        ended.outcomes = outcomes(out) if out.exists() else None
        return ended

    return run


def outcomes(file):
    return {part["name"]: part["outcome"] for part in json.loads(file.read_text())["parts"]}


@pytest.fixture(scope="session")
def everything(check):
    return check(FAKE_CUDA_DELAY_US="20")


def test_nothing_is_bad(everything):
    assert everything.returncode == 0, everything.stdout
    assert list(everything.outcomes) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_good_or_says_why_it_was_not_run(everything, part):
    outcome = everything.outcomes[part]
    assert f"\n{part}: {outcome}\n" in everything.stdout
    if outcome.startswith("not run: ") and part in MAY_BE_MISSING:
        pytest.skip(outcome)
    assert outcome == "good"


def test_without_a_driver_it_says_so(check):
    ended = check(driver="/nowhere/libcuda.so.1")
    assert ended.returncode == 3
    assert "\nno CUDA here: libcuda.so.1" in ended.stdout
    assert ended.outcomes is None
    ended = check(FAKE_CUDA_DEVICES="0")
    assert ended.returncode == 3
    assert "\nno CUDA here: cuInit gives CUDA_ERROR_NO_DEVICE (100)" in ended.stdout


def test_what_is_bad_is_said_and_the_next_part_runs(check):
    broken = "cuMemImportFromShareableHandle:1:999"
    ended = check("shared-descriptors", "compilation", FAKE_CUDA_FAIL=broken)
    assert ended.returncode == 1
    why = "bad: the other process: cuMemImportFromShareableHandle gives CUDA_ERROR_UNKNOWN (999)"
    assert ended.outcomes == {"shared-descriptors": why, "compilation": "good"}


def test_a_program_of_the_pack_that_fails_is_bad(check):
    ended = check("plans", "machine", FAKE_CUDA_FAIL="cuModuleLoadData:1:2")
    assert ended.returncode == 1
    assert ended.outcomes["plans"].startswith("bad: cases_that_are_kept_move_too: ")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in ended.outcomes["plans"]
    assert ended.outcomes["machine"] == "good"


def test_a_part_that_hangs_is_killed_with_all_that_it_has_started(check):
    hours = str(3_600_000_000)
    ended = check("plans", "ceilings", "--part-seconds", "3", FAKE_CUDA_DELAY_US=hours)
    assert ended.returncode == 1
    late = "bad: not done after 3 s"
    assert ended.outcomes == {"plans": late, "ceilings": late}


def test_what_there_is_no_time_for_is_not_run(check):
    ended = check("machine", "ceilings", "--seconds", "0.5")
    assert set(ended.outcomes.values()) == {"not run: the time was up"}


def test_a_part_that_is_cut_short_by_the_time_of_all_is_not_bad(check, tmp_path):
    hours = str(3_600_000_000)
    ended = check("ceilings", "machine", "--seconds", "3", FAKE_CUDA_DELAY_US=hours)
    assert ended.returncode == 0
    assert set(ended.outcomes.values()) == {"not run: the time was up"}


def test_a_driver_that_is_gone_in_the_midst_is_bad(check):
    # The first part has no need to ask it.
    ended = check("torch-engine", "ceilings", FAKE_CUDA_DEVICES="0")
    assert ended.returncode == 1
    assert ended.outcomes["torch-engine"].startswith("not run: ")
    assert ended.outcomes["ceilings"] == "bad: no CUDA here: cuInit gives CUDA_ERROR_NO_DEVICE (100)"


@pytest.mark.parametrize(
    ("part", "call"),
    [("registered-memfd", "cuMemHostRegister_v2"), ("shared-descriptors", "cuMemExportToShareableHandle")],
)
def test_what_a_container_does_not_support_is_not_run(check, part, call):
    ended = check(part, FAKE_CUDA_FAIL=f"{call}:1:801")
    assert ended.returncode == 0
    assert ended.outcomes == {part: f"not run: {call} gives CUDA_ERROR_NOT_SUPPORTED (801)"}


def test_figures_of_the_bench_stand_beside_their_aims(everything):
    if everything.outcomes["bench"] != "good":
        pytest.skip(everything.outcomes["bench"])
    assert "  relayout, runs of 512 B / one device copy  " in everything.stdout
    assert "at least 0.93)" in everything.stdout


def test_the_traffic_beside_steps_of_torch(pack, fake, tmp_path):
    """It needs no torch."""
    for name in "libcuda.so", "libcuda.so.1":
        (tmp_path / name).symlink_to(fake)
    body = """
from checks.driver import Driver
from checks.kernel import PIECE, Traffic
from checks.torch_step import both_ways
driver = Driver.of_first_gpu()
traffic = [Traffic(driver, 1, way) for way in ("out", "back")]
for way in traffic:
    way.start()
assert both_ways(driver, 1 << 20) > 0
while any(way.done < 3 * PIECE and not way.failed for way in traffic):
    pass
assert all(way.end() > 0 for way in traffic)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(pack)}
    subprocess.run([sys.executable, "-c", body], env=environment, check=True, timeout=120)


FIGURE = {"name": "first", "unit": "GB/s", "median": 2.0, "baseline": {"name": "one copy", "figure": 4.0}, "ratio": 0.5}


@pytest.mark.parametrize(
    ("figures", "end", "outcome", "told"),
    [
        ([FIGURE], "sleep 600", "bad: not done after 5 s", {}),
        (
            [FIGURE, {"name": "second", "error": "out of memory"}],
            "exit 1",
            "bad: transload bench gpu could not measure second",
            {"second": "failed: out of memory"},
        ),
    ],
)
def test_each_figure_is_told_as_it_is_made(pack, fake, tmp_path, figures, end, outcome, told):
    """So that one that comes too late, or fails, leaves the others."""
    command, out = benching(pack, fake, tmp_path, figures, end)
    assert subprocess.run([*command, "--part-seconds", "5", "bench"], timeout=60).returncode == 1
    [part] = json.loads(out.read_text())["parts"]
    assert part["outcome"] == outcome
    assert without_time(part) == told | told_of_first(figures)


def benching(pack, fake, folder, figures, end):
    """A pack whose bench tells figures and ends so: the command that checks with it, and the file of results."""
    for name in "check", "about.json":
        shutil.copy(pack / name, folder)
    shutil.copytree(pack / "checks", folder / "checks")
    (folder / "bin").mkdir()
    bench = folder / "bin/transload"
    lines = "".join(f"echo '{json.dumps(figure)}'\n" for figure in figures)
    bench.write_text(f"#!/bin/sh\n{lines}echo what is no figure\n{end}\n")
    bench.chmod(0o755)
    out = folder / "results.json"
    return [sys.executable, folder / "check", "--driver", fake, "--out", out], out


def told_of_first(figures):
    return {"first, GB/s": 2.0, "first / one copy": 0.5, "transload bench gpu": figures}


def without_time(part):
    return {what: value for what, value in part["told"].items() if what != "seconds"}


@pytest.mark.parametrize("told_by", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_told_to_end_keeps_what_the_part_has_told(pack, fake, tmp_path, told_by):
    # More than a pipe holds: the figure before it has been read when all of it is written.
    end = f"head -c 300000 /dev/zero | tr '\\0' '\\n'; touch {tmp_path}/told; sleep 600"
    command, out = benching(pack, fake, tmp_path, [FIGURE], end)
    check = subprocess.Popen([*command, "bench", "machine"], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "told").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # Its part hangs, and goes with it.
    check.send_signal(told_by)
    said, _ = check.communicate(timeout=60)
    assert check.returncode == 1
    [part] = json.loads(out.read_text())["parts"]
    assert part["outcome"] == "not run: the check was told to end"
    assert without_time(part) == told_of_first([FIGURE])
    assert "bench: not run: the check was told to end" in said


def test_results_are_named_after_the_gpu_and_never_overwritten(pack, fake, tmp_path):
    for _ in range(2):
        subprocess.run([sys.executable, pack / "check", "--small", "--driver", fake, "compilation"], cwd=tmp_path, check=True)
    first, second = sorted(file.name for file in tmp_path.iterdir())
    assert first.startswith("cuda-fake-gpu-2") and first.endswith("-2.json")
    assert second == first.removesuffix("-2.json") + ".json"


@pytest.mark.parametrize("arguments", [["no-such-part"], ["--no-such-option"]])
def test_wrong_usage_is_refused(check, arguments):
    assert check(*arguments).returncode == 2


def test_only_a_pack_is_checked_and_only_a_pack_is_made_anew(tmp_path):
    assert subprocess.run([ROOT / "cuda/check"]).returncode == 2
    kept = tmp_path / "kept"
    kept.write_text("mine")
    assert subprocess.run([ROOT / "cuda/pack", "--to", tmp_path]).returncode == 2
    assert kept.read_text() == "mine"


def test_a_pack_that_is_too_large_is_said_to_be(pack, tmp_path):
    ended = subprocess.run([*PACK, "--wheel", "none", "--to", tmp_path / "pack", "--mib", "1"], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("cuda/pack: that is more than 1 MiB\n")
