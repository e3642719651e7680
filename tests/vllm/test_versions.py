"""What the connector expects of vLLM is there, by name and signature; and which versions nothing was run with."""

import sys
from pathlib import Path

import pytest
import vllm

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from vllm_names import faults  # noqa: E402


def test_names_and_signatures():
    assert faults(Path(vllm.__file__).parents[1]) == []


def test_names_that_are_not_there(tmp_path):
    (tmp_path / "vllm").mkdir()
    assert "connector.py: there is no vllm.v1.metrics.cache_hit_source" in faults(tmp_path)


@pytest.mark.parametrize("version", ["0.33"])
def test_versions_without_a_build_for_the_cpu(version):
    if not vllm.__version__.startswith(version):
        pytest.skip(f"NOT RUN: there is no build of vLLM {version} for the CPU; tests/tools/vllm_names.py compares its names")
