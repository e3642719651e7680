"""The stand-in engine with tensors of a torch that is installed, as `cuda/check` has it on a GPU: here on the host."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import transload

CACHE = Path(os.environ.get("TRANSLOAD_VLLM_CACHE") or Path.home() / ".cache/transload/vllm")


def test_layouts_are_measured_of_tensors_of_torch():
    others = sorted(CACHE.glob("env-*/bin/python"))
    python = sys.executable if find_spec("torch") else next(iter(others), None)
    if python is None:
        pytest.skip("NOT RUN: there is no torch, which `./test vllm` installs")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).with_name("test_connector_moves.py")]
    package = str(Path(transload.__file__).parents[1])
    environment = os.environ | {"STAND_IN_TORCH": "1", "PYTHONPATH": package}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
