"""What agents log, in Python's `logging`."""

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import CONTENT, LENGTH, TABLES, Engine

import transload

def until(what):
    """Waits for what comes by way of another thread."""
    deadline = time.monotonic() + 20
    while not (found := what()):
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.01)
    return found


def test_sides_that_differ_are_logged_on_both(certs, caplog):
    caplog.set_level(logging.INFO, "transload")
    prefill, decode = Engine(certs, "prefill", heads=4), Engine(certs, "decode", heads=2)
    set = os.urandom(16)
    prefill.agent.lease(set, 0, TABLES[0], CONTENT, LENGTH)
    with pytest.raises(transload.TransferError, match="heads.*2 here, 4 there"):
        decode.agent.pull(prefill.ticket(set, LENGTH), [0], [[6, 7]], CONTENT, LENGTH).ended.result(30)

    def found(peer, ours, theirs):
        told = f'field=group "attn": spec[0].heads ours={ours} theirs={theirs}'
        return [record for record in caplog.records if f"agent={peer}/" in record.message and told in record.message]

    for said in (("decode", 4, 2), ("prefill", 2, 4)):
        [record] = until(lambda: found(*said))
        assert (record.name, record.levelname) == ("transload.transfer", "WARNING")
        assert record.message.startswith("refused ")
        assert record.filename == "log.rs" and record.lineno > 0
    until(lambda: [r for r in caplog.records if 'kind="incompatible"' in r.message])
    for engine in (prefill, decode):
        engine.agent.shutdown(0)


@pytest.mark.parametrize("push", [False, True])
def test_refusals_are_logged_on_both_sides(pair, caplog, push):
    caplog.set_level(logging.WARNING, "transload")
    leased, ticket = pair.lease(ttl=0.05)
    set = leased.set
    assert leased.ended.result(30) == "expired"
    with pytest.raises(transload.TransferError):
        pair.pull(ticket, into=pair.decode.ticket(os.urandom(16), LENGTH, push=True) if push else None).ended.result(30)

    def found(*parts):
        messages = [record.message for record in caplog.records]
        return [text for text in messages if all(part in text for part in parts)]

    until(lambda: found("a lease has ended", set.hex(), "expired"))
    refused = "refused to push" if push else "refused a transfer"
    until(lambda: found(refused, "agent=decode", "the lease has expired"))
    until(lambda: found("a transfer has failed", set.hex(), "the lease has expired"))
    # Tickets are secrets.
    assert ticket.text not in caplog.text
    # What is not wanted is not told.
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_handler_may_use_the_agent(pair):
    """Nobody who logs waits for a handler."""
    logger, gauges = logging.getLogger("transload"), []

    class Handler(logging.Handler):
        def emit(self, record):
            gauges.append(pair.prefill.agent.gauges())

    handler = Handler()
    logger.addHandler(handler)
    try:
        pair.lease(ttl=0.05)
        assert until(lambda: gauges)[0]["jobs"] == 0
    finally:
        logger.removeHandler(handler)


def written(code, *arguments):
    """What a process with this code writes to its log."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parent, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


OPEN_KEY = """
import logging, sys, transload
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
transload.Identity(sys.argv[1], "prefill")
"""


def test_a_key_that_others_can_read_is_told_of(certs, tmp_path):
    """By the first thing that logs in its process."""
    folder = shutil.copytree(certs, tmp_path / "certs")
    assert written(OPEN_KEY, folder) == ""
    [key] = folder.glob("**/prefill*key*")
    key.chmod(0o644)
    words = written(OPEN_KEY, folder)
    assert words.startswith("transload.transfer WARNING a secret key is readable by others; chmod 600 it"), words
    assert str(key) in words and "644" in words


LAST_WORDS = """
import logging, os, sys, time, transload
from conftest import Engine
from pathlib import Path
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
class Slow(logging.Filter):
    def filter(self, record):
        time.sleep(0.3)
        return True
logging.getLogger("transload.transfer").addFilter(Slow())
def work():
    engine = Engine(Path(sys.argv[1]), "prefill")
    content = transload.Prompt(range(30)).digest()
    lease = engine.agent.lease(os.urandom(16), 0, [[5, 2]], content, 30, ttl=0.01)
    assert lease.ended.result(30) == "expired"
    return engine
engine = work()
if sys.argv[2] == "fork":
    engine.agent.shutdown(0)
    logging.getLogger().handlers[0].flush()
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    logging.info("child")
    engine = work()
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_what_is_logged_last_is_told(certs, how):
    """The process ends with its agent alive, and does not hang."""
    words = written(LAST_WORDS, certs, how)
    assert "transload.transfer WARNING a lease has ended" in words.split("root INFO child")[-1], words
