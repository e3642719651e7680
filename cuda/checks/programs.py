"""What the pack's own programs say on this GPU: tests of the workspace, and `transload bench gpu`."""

import collections
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from . import needs
from .driver import LIBRARY, PACK, Bad, NotRun

BINARIES, STAND_IN = PACK / "bin", PACK / "python-tests"


def started(command, variables):
    """Gives what a program of the pack is started with."""
    # Tests find the kept cases from there.
    environment = {**os.environ, "TRANSLOAD_TEST_GPU": "1", "CARGO_MANIFEST_DIR": str(PACK), **variables}
    return {"args": [str(word) for word in command], "env": environment, "text": True, "errors": "replace", "cwd": PACK}


def follow(command, each, timeout=None, **variables):
    """Runs a program, hands over each line that it writes as soon as it is there, so that what it has told is kept if it is
    killed, and gives its exit code and all lines. After `timeout` seconds it is killed."""
    lines = []
    with subprocess.Popen(**started(command, variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        killer = threading.Timer(timeout, child.kill) if timeout else None
        if killer:
            killer.start()
        for line in child.stdout:
            lines.append(line.rstrip())
            each(lines[-1])
    if killer:
        killer.cancel()
        if child.returncode == -signal.SIGKILL:
            raise subprocess.TimeoutExpired(command, timeout)
    return child.returncode, lines


def message_of(line):
    """Gives what a part has told in a line; None for one that something else has printed, as a library may."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def test(binary, name, wrapper=(), timeout=None, **variables):
    """Runs one test of the workspace on the GPU, which has to pass, and gives what it said."""
    if not (BINARIES / binary).exists():
        raise NotRun(f"the pack has no {binary}")
    command = [*wrapper, BINARIES / binary, name, "--exact", "--nocapture"]
    # What it says is handed on as it comes, so that a test that hangs can be told.
    code, lines = follow(command, lambda line: print(line, file=sys.stderr, flush=True), timeout, **variables)
    said = "\n".join(lines)
    if missing := re.search("NOT RUN: (.*)", said):
        raise NotRun(missing[1])
    if code:
        # The first panic tells the cause; those of the processes around it come behind.
        cause = next((at for at, line in enumerate(lines) if "panicked at" in line), max(len(lines) - 12, 0))
        raise Bad(f"{name}: {' | '.join(lines[cause : cause + 12])}")
    if not re.search(r"test result: ok\. 1 passed", said):
        raise NotRun(f"the pack's {binary} has no test {name}")
    return said


def plans(tell, small):
    """Runs random programs and the kept cases, with either side and both on the GPU, against the oracle's bytes."""
    wanted, cases = (1, 2) if small else (2000, 50)
    test("device", "cases_that_are_kept_move_too")
    tell("kept cases", "good")
    for name in "long_copies_go_in_pieces", "copies_that_share_a_gpu_all_end", "marks_hold_up_nobody_else":
        test("device", name)
        tell(name.replace("_", " "), "good")
    done, until = 0, time.monotonic() + 35
    while done < wanted and time.monotonic() < until:
        # Another seed for each batch; what fails says which case it was.
        batch = {"PROPTEST_CASES": str(cases), "PROPTEST_RNG_SEED": str(18 + done)}
        said = test("device", "plans_move_what_the_oracle_says", **batch)
        done += int(re.search(r"(\d+) programs", said)[1])
        tell("random programs", done)


def agents(tell, small):
    """Runs pulls and pushes between agents of one process, and what an engine has submitted before them."""
    for name in (
        "pulls_reach_every_byte_from_and_to_a_gpu",
        "pushes_reach_every_byte_from_and_to_a_gpu",
        "nothing_is_touched_before_its_mark",
    ):
        test("device_agents", name)
        tell(name.replace("_", " "), "good")


def processes(tell, small):
    """Runs pulls between processes over each path, of which one is killed in the midst of them."""
    for name in "destinations_on_a_gpu_survive_their_sources", "a_source_on_a_gpu_survives_its_destinations":
        said = test("kill", f"on_gpu::{name}")
        tell(name.replace("_", " "), "good")
        for number, line in enumerate(re.findall(r"rounds of seed .*", said)):
            tell(f"{name.replace('_', ' ')}, path {number}", line)


def engine(tell, small):
    """Runs the vLLM connector under the stand-in engine, whose steps are computed later than they are submitted: tokens are
    exact with marks, and have to be wrong without."""
    connector(tell, small)


def torch_engine(tell, small):
    """Runs the same with tensors and streams of torch's, whose work waits behind kernels that spin."""
    needs.torch()
    connector(tell, small, STAND_IN_TORCH="1")


def connector(tell, small, **variables):
    needs.package()
    if not (STAND_IN / "connector_on_gpu.py").exists():
        raise NotRun("the pack has no engine that computes on a GPU")
    if not importlib.util.find_spec("numpy"):
        raise NotRun("there is no numpy")
    # With no settings and plugins but its own, whatever this machine has.
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", PACK]
    command += [STAND_IN / "connector_on_gpu.py"]
    if small:
        command += ["-k", "steps_that_a_gpu_has_not_done_yet and prefill and attention and pull"]
    path = os.pathsep.join([str(PACK / "site"), os.environ.get("PYTHONPATH", "")])
    variables |= {"CUDA_LIBRARY": LIBRARY, "CUDA_SPIN": str(PACK / "spin.ptx"), "PYTHONPATH": path}
    counts = collections.Counter()

    def count(line):
        if ended := re.search(r"::(.+) (PASSED|FAILED|ERROR|SKIPPED).*\[ *\d+%\]$", line):
            counts[ended[2].lower()] += 1
            tell("tests of the connector", dict(counts))
            if ended[2] in ("FAILED", "ERROR"):
                tell(ended[1], ended[2].lower())

    code, said = follow(command, count, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **variables)
    if any("No module named pytest" in line for line in said):
        raise NotRun("neither the pack nor this Python has pytest")
    if code:
        raise Bad(f"the engine: {' | '.join(said[-18:])}")


def lost(tell, small):
    """Has a kernel of an engine read from an illegal address, in a process of its own."""
    test("device", "an_illegal_address_loses_the_device")
    tell("copies and marks say that the device is lost", True)


def graph(tell, small):
    """Captures work of an engine as CUDA graphs while copies run."""
    said = test("device", "a_graph_is_captured_while_copies_run")
    tell("graphs captured, launched and right", int(re.search(r"(\d+) graphs", said)[1]))


def sanitizer(tell, small):
    """Runs a few programs under compute-sanitizer, which sees every access of the kernel."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        raise NotRun("there is no compute-sanitizer")
    # The test runs its body in another process.
    wrapper = [tool, "--error-exitcode", "77", "--target-processes", "all"]
    try:
        test("device", "cases_that_are_kept_move_too", wrapper, timeout=50)
    except subprocess.TimeoutExpired:
        raise NotRun("compute-sanitizer needs more than 50 s for it here") from None
    except Bad as why:
        if "not supported" in str(why):
            raise NotRun(f"compute-sanitizer does not work here: {why}") from None
        raise
    tell("kept cases under memcheck", "good")


# What the figures of `transload bench gpu` are to reach: in their own unit, or beside what they are compared with.
AIMS = {
    "relayout, runs of 64 B / one device copy": {"at_least": 0.5},
    "relayout, runs of 512 B / one device copy": {"at_least": 0.8},
    "relayout, runs of 8 KiB / one device copy": {"at_least": 0.9},
    "relayout, runs of 1 MiB / one device copy": {"at_least": 0.93},
    "canonical case, one route, us": {"at_most": 75},
    "gather to pinned memory, runs of 512 B / one copy to it": {"at_least": 0.9},
    "scatter from pinned memory, runs of 512 B / one copy from it": {"at_least": 0.9},
    "both at once, runs of 512 B / one copy each way": {"at_least": 0.8},
    "submitting 16 MiB within the GPU, runs of 512 B, us": {"at_most": 10},
    "submitting 16 MiB within the GPU, runs of 1 MiB, us": {"at_most": 10},
    "submitting 16 MiB to the host, runs of 512 B, us": {"at_most": 10},
    "submitting 16 MiB to the host, runs of 1 MiB, us": {"at_most": 10},
    "from a mark to its first piece of 1 MiB in pinned memory, us": {"at_most": 100},
    "through its slots without sums, runs of 512 B, GB/s": {"at_least": 300},
    "a ring in device memory, runs of 512 B, GB/s": {"at_least": 150},
    "GPU to GPU over QUIC, chunks of 512 B / host to host": {"at_least": 0.95},
}


def bench(tell, small):
    """Takes over the figures of `transload bench gpu`, each as it is made."""
    command = [BINARIES / "transload", "bench", "gpu", "--out", "/dev/stdout"]
    command += ["--rounds", "1", "--seconds", "1", "--mib", "1"] if small else ["--seconds", "2"]
    began, all_of_it, failed = time.perf_counter(), [], []

    def take(line):
        figure = message_of(line) or {}
        if "name" not in figure:
            return
        all_of_it.append(figure)
        tell("transload bench gpu", all_of_it)
        if "error" in figure:
            failed.append(figure["name"])
            return tell(figure["name"], f"failed: {figure['error']}")
        name, baseline = figure["name"], figure["baseline"]
        figures = {f"{name}, {figure['unit']}": figure["median"], f"{name} / {baseline['name']}": figure["ratio"]}
        for what, value in figures.items():
            # None is a number that JSON has no word for.
            tell(what, value and round(value, 3), **(AIMS.get(what, {}) if value else {}))

    code, said = follow(command, take)
    tell("seconds", round(time.perf_counter() - began, 1))
    if any("unrecognized" in line or "invalid value 'gpu'" in line for line in said):
        raise NotRun("this transload has no `bench gpu`")
    if failed:
        raise Bad(f"transload bench gpu could not measure {', '.join(failed)}")
    if code:
        raise Bad(f"transload bench gpu: {' '.join(said)[-500:]}")
