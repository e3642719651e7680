"""The example is true."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES


@pytest.mark.smallest
def test_two_servers_answer_as_one(models, tmp_path):
    """The pair that every run of the tests starts: blocks of 32 tokens and of 64."""
    folder = tmp_path / "example"
    folder.mkdir()
    (folder / "llama").symlink_to(models("llama"))
    script = [sys.executable, EXAMPLES / "disaggregated.py", "--folder", folder]
    done = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    print(done.stdout)
    if done.returncode != 0:
        for log in sorted(Path(folder).glob("*.log")):
            print(f"--- {log}\n", *log.read_text(errors="replace").splitlines(True)[-60:])
    assert done.returncode == 0
    assert "3 of 3 answers are those of one server" in done.stdout
