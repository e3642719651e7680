"""LMCache, SGLang and llama-cpp-python on the CPU. `./test engines` makes the environment for them and runs these tests."""

import os
import sys
from pathlib import Path

import pytest

# Whoever looks for a GPU finds none; torch's own threads would take the cores from the stores'.
os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", LMCACHE_TRACK_USAGE="false")

# The parts of source distributions that the environment holds: tests and examples.
SOURCES = Path(sys.prefix) / "sources"


@pytest.fixture
def store(tmp_path) -> str:
    """A file store of the test's own."""
    return f"file://{tmp_path / 'store'}"
