"""Runs the tests of vLLM's connector that want a GPU on the fake driver, which a process has from its start or never."""

import os
import subprocess
import sys
from pathlib import Path

BODIES = Path(__file__).with_name("connector_on_gpu.py")
SPIN = Path(__file__).resolve().parents[3] / "cuda/spin.ptx"


def test_the_connector_on_a_gpu(fake_driver):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(BODIES)]
    variables = {"CUDA_LIBRARY": fake_driver, "CUDA_SPIN": str(SPIN), "FAKE_CUDA_DEVICES": "2"}
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
