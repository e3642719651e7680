"""What a process has opened is refused by name in a child that it forks, which can open its own; and the parent goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import document
from test_llama_states import state

# What is opened, calls that are refused, and what is true of it in the parent, and in a child that has opened its own.
KINDS = {
    "objects": (
        "transload.Objects(uri, 'tests')",
        ["mine.has(['a'])", "mine.put(['a'], [b''])"],
        "mine.put(['a'], [b'data']) is not None and mine.has(['a'])[0].bytes == 4",
    ),
    "a queue": (
        "transload.ObjectQueue(uri, 'tests')",
        ["mine.event_fd()", "mine.drain_completions()", "mine.close()", "mine.submit_batch_exists(['a'])",
         "mine.submit_batch_set(['a'], [b''])", "mine.submit_batch_get(['a'], [bytearray(1)])"],
        "mine.submit_batch_set(['a'], [b'data']) and mine.close() is None and transload.Objects(uri, 'tests').has(['a'])[0].bytes == 4",
    ),
    "an archive": (
        "transload.Archive(uri, 'demo', 'r1', transload.Deployment(document))",
        ["mine.find(transload.Prompt([1] * 300))"],
        "mine.find(transload.Prompt([1] * 300)).tokens == 0",
    ),
    "states": (
        "transload.LlamaStates(uri, 'm', 'w', state)",
        ["mine.save([7], state)", "mine.find([7])"],
        "mine.save([7], state) is not None and mine.restore(mine.find([7])) == state",
    ),
    "an agent": (
        "Engine(certs, 'decode' if is_child else 'prefill').agent", ["mine.gauges()"], "mine.gauges()['leases'] == 0"
    ),
}  # fmt: skip
CODE = """
import os, sys, json, transload
from conftest import Engine
_, uri, certs, document, state, opens, calls, is_good = sys.argv
certs, state, is_child = __import__("pathlib").Path(certs), bytes.fromhex(state), False
mine = eval(opens)
if os.fork() == 0:
    is_child = True
    for call in json.loads(calls):
        try:
            eval(call)
            os._exit(1)
        except transload.TransloadError as error:
            assert "before the process forked" in str(error), error
    # Dropping it ends nothing of the parent's.
    del mine
    mine = eval(opens)
    os._exit(0 if eval(is_good) else 2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert eval(is_good)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_opens_its_own(kind, certs, tmp_path):
    opens, calls, is_good = KINDS[kind]
    given = [f"file://{tmp_path}/kv", str(certs), json.dumps(document()), state(1).hex(), opens, json.dumps(calls), is_good]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *given], cwd=Path(__file__).parent, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
