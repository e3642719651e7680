"""Real transformers on the CPU. `./test hf` makes the environment for them and runs these tests."""

import os

import pytest

# Whoever looks for a GPU finds none; and sums are of the same order each time.
os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")


@pytest.fixture
def store(tmp_path) -> str:
    """A file store of the test's own."""
    return f"file://{tmp_path / 'store'}"


@pytest.fixture(autouse=True)
def own_digests(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
