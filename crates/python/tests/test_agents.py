"""Real agents: leases, pulls and pushes over QUIC and shared memory."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import Engine, expected, fill
from test_package import typed_dict

import transload

TOKENS = list(range(1000, 1030))
CONTENT = transload.Prompt(TOKENS).digest()
TABLES = ([[5, 2]], [[6]])


def lease(engine, set, **more):
    return engine.agent.lease(set, 0, TABLES[0], CONTENT, len(TOKENS), **more)


@pytest.mark.parametrize(
    ("paths", "path"), [("any", "ring"), ("local", "ring"), ("quic", "quic")]
)
def test_a_pull_delivers_every_byte(pair, paths, path):
    prefill, decode = pair
    fill(prefill.memories[0][0])
    set = os.urandom(16)
    leased = lease(prefill, set)
    assert (leased.set, leased.rank) == (set, 0)
    ticket = transload.Ticket(prefill.ticket(set, len(TOKENS)).text)
    transfer = decode.agent.pull(
        ticket, [0, 1], TABLES[1], CONTENT, len(TOKENS), paths=paths
    )
    report = transfer.ended.result(30)
    assert report["bytes"] == 30 * 4 * 2 * 256
    assert {route["rank"] for route in report["routes"]} == {0, 1}
    assert {route["path"] for route in report["routes"]} == {path}
    assert report.keys() == typed_dict("TransferReport")
    assert report["routes"][0].keys() == typed_dict("RouteReport")
    assert leased.ended.result(30) == "completed"
    for rank, bytes in expected(prefill, decode, TABLES, 30).items():
        memory = decode.memories[rank][0]
        assert memory.read(0, memory.nbytes) == bytes
    assert prefill.agent.gauges()["leases"] == 0


def test_a_push_delivers_every_byte(pair):
    prefill, decode = pair
    fill(prefill.memories[0][0])
    set = os.urandom(16)
    opened = [
        decode.agent.open(set, rank, TABLES[1], CONTENT, len(TOKENS)) for rank in (0, 1)
    ]
    ticket = decode.ticket(set, len(TOKENS), push=True)
    transfer = prefill.agent.push(
        ticket, [0], TABLES[0], CONTENT, len(TOKENS), prefilled=False, by_layer=True
    )
    for layer in range(4):
        transfer.ready(0, layer, len(TOKENS))
    transfer.finish_prefill()
    assert transfer.ended.result(30)["bytes"] == 30 * 4 * 2 * 256
    assert [lease.ended.result(30) for lease in opened] == ["completed"] * 2
    for rank, bytes in expected(prefill, decode, TABLES, 30).items():
        memory = decode.memories[rank][0]
        assert memory.read(0, memory.nbytes) == bytes


def test_a_pull_may_be_pushed_by_the_owner(pair):
    prefill, decode = pair
    fill(prefill.memories[0][0])
    leased, opened = os.urandom(16), os.urandom(16)
    owned = lease(prefill, leased)
    into = decode.ticket(opened, len(TOKENS), push=True)
    transfer = decode.agent.pull(
        prefill.ticket(leased, 30), [0, 1], TABLES[1], CONTENT, len(TOKENS), into=into
    )
    report = transfer.ended.result(30)
    assert report["bytes"] == 30 * 4 * 2 * 256
    assert {route["rank"] for route in report["routes"]} == {0, 1}
    assert owned.ended.result(30) == "completed"
    for rank, bytes in expected(prefill, decode, TABLES, 30).items():
        memory = decode.memories[rank][0]
        assert memory.read(0, memory.nbytes) == bytes
    # Where it cannot be opened, nothing is begun.
    with pytest.raises(transload.TransferError, match="has ended already") as raised:
        decode.agent.pull(
            prefill.ticket(leased, 30), [0, 1], TABLES[1], CONTENT, 30, into=into
        )
    assert raised.value.kind == "request"


def test_a_pull_may_come_before_its_lease(pair):
    prefill, decode = pair
    set = os.urandom(16)
    transfer = decode.agent.pull(
        prefill.ticket(set, 30), [0, 1], TABLES[1], CONTENT, 30
    )
    assert not transfer.ended.wait(0.3)
    leased = lease(prefill, set, prefilled=False)
    assert not transfer.ended.wait(0.3)
    for layer in range(4):
        leased.ready(layer, 30)
    leased.finish_prefill()
    assert transfer.ended.result(30)["bytes"] > 0


def test_completions_can_be_awaited_and_called_back(pair):
    prefill, decode = pair

    async def pull():
        set = os.urandom(16)
        leased = lease(prefill, set)
        transfer = decode.agent.pull(
            prefill.ticket(set, 30), [0, 1], TABLES[1], CONTENT, 30
        )
        return (await transfer.ended)["bytes"], await leased.ended

    assert asyncio.run(pull()) == (30 * 4 * 2 * 256, "completed")
    leased = lease(prefill, os.urandom(16))
    assert leased.ended == leased.ended and len({leased.ended, leased.ended}) == 1
    told = []
    leased.ended.add_done_callback(told.append)
    done = threading.Event()
    leased.ended.add_done_callback(lambda _: done.set())
    unwanted = []
    remove = unwanted.append
    leased.ended.add_done_callback(remove)
    assert leased.ended.remove_done_callback(remove)
    assert not leased.ended.remove_done_callback(remove)
    leased.cancel()
    assert done.wait(30)
    assert told == [leased.ended] and not unwanted
    late = []
    leased.ended.add_done_callback(late.append)
    assert [ended.result(0) for ended in late] == ["cancelled"]


def test_waiting_lets_other_threads_run(pair):
    prefill, _ = pair
    leased = lease(prefill, os.urandom(16))
    counted = 0

    def cancel_later():
        nonlocal counted
        for _ in range(20):
            time.sleep(0.01)
            counted += 1
        leased.cancel()

    thread = threading.Thread(target=cancel_later)
    thread.start()
    assert leased.ended.result(30) == "cancelled"
    thread.join()
    assert counted == 20


def test_what_goes_wrong_is_told(pair):
    prefill, decode = pair

    def pull(ticket, content=CONTENT, tokens=30):
        try:
            transfer = decode.agent.pull(
                ticket, [0, 1], TABLES[1], content, tokens, timeout=20
            )
            transfer.ended.result(30)
        except transload.TransferError as error:
            return error.kind, str(error)
        return None

    # Another prompt than the lease holds.
    set = os.urandom(16)
    leased = lease(prefill, set)
    kind, message = pull(
        prefill.ticket(set, 30), transload.Prompt(TOKENS[:29] + [7]).digest()
    )
    assert kind == "content" and "other content" in message
    # It is still whole for who has the right one.
    assert pull(prefill.ticket(set, 30)) is None
    assert leased.ended.result(30) == "completed"
    # Used up.
    kind, message = pull(prefill.ticket(set, 30))
    assert kind == "consumed" and "used up" in message
    # Expired.
    set = os.urandom(16)
    leased = lease(prefill, set, ttl=0.05)
    assert leased.ended.result(30) == "expired"
    assert pull(prefill.ticket(set, 30))[0] == "expired"
    with pytest.raises(transload.LeaseError):
        leased.renew(1)
    # More tokens than the ticket covers, a forged ticket, a ticket of the other kind.
    set = os.urandom(16)
    assert pull(prefill.ticket(set, 20))[0] == "request"
    text = prefill.ticket(set, 30).text
    assert pull(transload.Ticket(text[:-4] + "AAAA"))[0] == "ticket"
    assert pull(prefill.ticket(set, 30, push=True))[0] == "ticket"
    with pytest.raises(transload.TicketError, match="begins with"):
        transload.Ticket("not a ticket")
    lease(prefill, set).cancel()
    with pytest.raises(transload.LeaseError, match="rank"):
        prefill.agent.lease(set, 3, TABLES[0], CONTENT, 30)


def test_tables_that_do_not_suit_are_refused_at_once(pair):
    prefill, decode = pair
    set = os.urandom(16)
    for tables, message in [
        ([], "gives 0 block tables for 1 groups"),
        ([[5]], "has 1 blocks, 2 are needed"),
        ([[5, 16]], "is block 16, but there are 16 blocks"),
    ]:
        with pytest.raises(transload.LeaseError, match=message):
            prefill.agent.lease(set, 0, tables, CONTENT, 30)
    leased = lease(prefill, set)
    ticket = prefill.ticket(set, 30)
    with pytest.raises(transload.TransferError, match="is block 99") as raised:
        decode.agent.pull(ticket, [0, 1], [[99]], CONTENT, 30)
    assert raised.value.kind == "request"
    # The lease is as good as before.
    decode.agent.pull(ticket, [0, 1], TABLES[1], CONTENT, 30).ended.result(30)
    assert leased.ended.result(30) == "completed"


def test_sides_of_two_models_are_told(certs):
    prefill = Engine(certs, "prefill", heads=4)
    decode = Engine(certs, "decode", heads=2)
    set = os.urandom(16)
    lease(prefill, set)
    transfer = decode.agent.pull(prefill.ticket(set, 30), [0], [[6, 7]], CONTENT, 30)
    with pytest.raises(transload.TransferError, match="heads") as raised:
        transfer.ended.result(30)
    assert raised.value.kind == "incompatible"
    for engine in (prefill, decode):
        engine.agent.shutdown(0)


def test_leases_are_renewed_and_given_up_by_ticket(pair):
    prefill, decode = pair
    set = os.urandom(16)
    leased = lease(prefill, set, ttl=5)
    ticket = prefill.ticket(set, 30)
    left = decode.agent.renew(ticket, 30).result(30)
    assert left is not None and 5 < left <= 31
    assert decode.agent.cancel(ticket).result(30) == (1, 1)
    assert leased.ended.result(30) == "cancelled"


def test_a_ticket_says_what_it_is_for(pair):
    prefill, decode = pair
    set = os.urandom(16)
    ticket = prefill.ticket(set, 30, start=7, push=True, time_left=5.0)
    # Whoever is of the cluster can read it.
    claims = transload.Ticket(ticket.text).open(decode.identity)
    assert claims == {
        "set": set,
        "push": True,
        "deployment": prefill.agent.deployment_digest,
        "incarnation": prefill.agent.incarnation,
        "start": 7,
        "valid_tokens": 30,
        "ranks": [(prefill.agent.name, "127.0.0.1", prefill.agent.port)],
        "time_left": 5.0,
    }
    assert set and claims.keys() == typed_dict("Claims")
    with pytest.raises(transload.TicketError, match="sealed"):
        transload.Ticket(ticket.text[:-4] + "AAAA").open(decode.identity)


def test_tickets_are_secrets(pair):
    prefill, _ = pair
    ticket = prefill.ticket(os.urandom(16), 30)
    assert ticket.text.startswith("tl1.")
    assert ticket.text not in repr(ticket) and "ticket#" in repr(ticket)


def test_content_is_told_apart():
    prompt = transload.Prompt
    digests = {
        prompt(TOKENS).digest(),
        prompt(TOKENS).digest(29),
        prompt(TOKENS, adapter="a").digest(),
        prompt(TOKENS, salt="a").digest(),
        prompt(TOKENS, multimodal=[("a", 3, 4)]).digest(),
        prompt(TOKENS, embeddings=bytes(32)).digest(),
    }
    assert len(digests) == 6
    assert prompt(TOKENS).digest(29) == prompt(TOKENS[:29]).digest()
    with pytest.raises(ValueError, match="31 tokens are said to be valid"):
        prompt(TOKENS).digest(31)
    with pytest.raises(OverflowError):
        prompt([-1])


def test_an_agent_needs_what_its_deployment_says(certs):
    identity = transload.Identity(certs, "prefill")
    engine = Engine(certs, "decode")
    with pytest.raises(transload.AgentError, match="are needed"):
        transload.Agent(identity, engine.deployment, {0: [transload.Memory.allocate([8])]})
    with pytest.raises(transload.AgentError, match="rank 1 is not of this deployment"):
        transload.Agent(identity, engine.deployment, {1: engine.memories[0]})
    with pytest.raises(ValueError, match="address and a port"):
        transload.Agent(identity, engine.deployment, engine.memories, bind="localhost")
    with pytest.raises(transload.IdentityError):
        transload.Identity(Path(certs) / "nowhere")
    engine.agent.shutdown(0)
    with pytest.raises(transload.AgentError, match="stopped"):
        engine.agent.lease(bytes(16), 0, TABLES[0], CONTENT, 30)


def test_metrics_count_what_was_done(pair):
    prefill, decode = pair
    metrics = prefill.agent.metrics()
    assert metrics.keys() == typed_dict("AgentMetrics")
    for key, of in [
        ("pulls", "TransferMetrics"),
        ("pushes", "TransferMetrics"),
        ("served", "RouteMetrics"),
        ("received", "RouteMetrics"),
        ("bytes_in", "PathBytes"),
        ("bytes_out", "PathBytes"),
        ("leases", "LeaseMetrics"),
    ]:
        assert metrics[key].keys() == typed_dict(of), key

    def pull(paths, waits=0.0):
        set = os.urandom(16)
        begun = time.monotonic()
        transfer = decode.agent.pull(
            prefill.ticket(set, 30), [0, 1], TABLES[1], CONTENT, 30, paths=paths
        )
        time.sleep(waits)
        leased = lease(prefill, set)
        report = transfer.ended.result(30)
        assert waits <= report["queued"] <= report["seconds"] <= time.monotonic() - begun
        assert leased.ended.result(30) == "completed"
        return report

    bytes = 30 * 4 * 2 * 256
    reports = [pull("quic", 0.3), pull("local")]
    done = decode.agent.metrics()
    assert (done["pulls"]["begun"], done["pulls"]["succeeded"]) == (2, 2)
    assert done["pulls"]["failed"] == {}
    for key in ("seconds", "queued"):
        assert done["pulls"][key] == pytest.approx(sum(r[key] for r in reports))
    assert done["bytes_in"] == {"quic": bytes, "ring": bytes, "device": 0}
    assert not any(done["bytes_out"].values())
    # Twice 30 tokens of 4 layers and 2 heads, 256 bytes each. Here the tokens of a head lie together, as far as they are
    # of one block there: 16 and 14 of them. There each lies apart.
    assert done["chunks"] == {4096: 2 * 2 * 4 * 2}
    # It was not busy while it waited for the lease.
    assert 0 < done["busy"] < done["pulls"]["seconds"] - 0.3 + 0.01
    given = prefill.agent.metrics()
    assert (given["served"]["begun"], given["served"]["succeeded"]) == (4, 4)
    assert given["bytes_out"] == done["bytes_in"] and not any(given["bytes_in"].values())
    assert given["chunks"] == {256: 2 * 30 * 4 * 2}
    assert given["leases"]["opened"] == given["leases"]["completed"] == 2
    assert given["pulls"]["begun"] == 0 and given["served"]["seconds"] > 0

    # What fails, and what is left.
    lease(prefill, os.urandom(16)).cancel()
    set = os.urandom(16)
    assert lease(prefill, set, ttl=0.05).ended.result(30) == "expired"
    pull = decode.agent.pull(prefill.ticket(set, 30), [0, 1], TABLES[1], CONTENT, 30)
    with pytest.raises(transload.TransferError):
        pull.ended.result(30)
    assert decode.agent.metrics()["pulls"]["failed"] == {"expired": 1}
    leases = prefill.agent.metrics()["leases"]
    assert leases == {
        "opened": 4, "completed": 2, "cancelled": 1, "expired": 1, "peer_lost": 0,
        "device_lost": 0, "device_stalled": 0,
    }  # fmt: skip


def test_metrics_count_pushes(pair):
    prefill, decode = pair
    set = os.urandom(16)
    opened = [decode.agent.open(set, rank, TABLES[1], CONTENT, 30) for rank in (0, 1)]
    ticket = decode.ticket(set, 30, push=True)
    push = prefill.agent.push(ticket, [0], TABLES[0], CONTENT, 30, prefilled=False)
    time.sleep(0.2)
    push.finish_prefill()
    assert push.ended.result(30)["queued"] >= 0.2
    assert [lease.ended.result(30) for lease in opened] == ["completed"] * 2
    pushed, received = prefill.agent.metrics(), decode.agent.metrics()
    assert (pushed["pushes"]["begun"], pushed["pushes"]["succeeded"]) == (1, 1)
    assert (received["received"]["begun"], received["received"]["succeeded"]) == (2, 2)
    assert pushed["bytes_out"] == received["bytes_in"]
    assert sum(pushed["bytes_out"].values()) == 30 * 4 * 2 * 256
    assert received["served"]["begun"] == pushed["served"]["begun"] == 0


def test_options_are_those_of_the_agent(certs):
    life = transload.new_incarnation()
    assert transload.new_incarnation() != life
    options = {"incarnation": life, "early_wait": 0.1, "notice_wait": 1, "keep_idle": 5.0}
    options |= {"stall_seconds": 5, "connect_seconds": 2.5}
    prefill = Engine(certs, "prefill", options=options)
    assert prefill.agent.incarnation == life
    decode = Engine(certs, "decode", options={"lanes": 1, "lane_ports": (21000, 21999)})
    # It takes less than the ten seconds that a pull waits for its lease by default.
    ticket = prefill.ticket(os.urandom(16), 30)
    pull = decode.agent.pull(ticket, [0], [[6, 7]], CONTENT, 30, timeout=5)
    with pytest.raises(transload.TransferError) as raised:
        pull.ended.result(30)
    assert raised.value.kind == "unknown"
    assert any(21000 <= port <= 21999 for port in udp_ports())
    for options, message in [
        ({"lanes": 0}, "lanes is 0; it must be 1 to 256"),
        ({"lanes": 3, "lane_ports": (21000, 21001)}, "lane_ports has 2 ports for 3 lanes"),
        ({"lane_ports": (0, 99)}, "lane_ports is 0..=99"),
    ]:
        with pytest.raises(transload.AgentError, match=message):
            Engine(certs, "decode", options=options)
    for name in ("early_wait", "notice_wait", "keep_idle"):
        with pytest.raises(ValueError, match=f"{name} is -1"):
            Engine(certs, "decode", options={name: -1})
    for name in ("stall_seconds", "connect_seconds"):
        wrongs = [(-1, "-1"), (0, "0"), (1e6, "1000000"), (float("nan"), "NaN"), (float("inf"), "inf")]
        for wrong, shown in wrongs:
            with pytest.raises(ValueError, match=f"^{name} is {shown}: give seconds, from 0.1 to 86400$"):
                Engine(certs, "decode", options={name: wrong})
    for engine in (prefill, decode):
        engine.agent.shutdown(0)


def udp_ports():
    """Local ports of all UDP sockets."""
    lines = Path("/proc/net/udp").read_text().splitlines()[1:]
    return {int(line.split()[1].split(":")[1], 16) for line in lines}


def test_prompts_and_tickets_travel(pair):
    ticket = pair[0].ticket(os.urandom(16), 30)
    assert pickle.loads(pickle.dumps(ticket)).text == ticket.text
    prompt = transload.Prompt(
        TOKENS, adapter="a", multimodal=[("b", 3, 4)], salt="c", embeddings=bytes(32)
    )
    copy = pickle.loads(pickle.dumps(prompt))
    assert len(copy) == 30 and copy.digest() == prompt.digest()
    assert copy.digest() != transload.Prompt(TOKENS).digest()


def test_callbacks_that_wait_keep_nobody_waiting(pair):
    prefill, _ = pair
    leases = [lease(prefill, os.urandom(16)) for _ in range(6)]
    other = lease(prefill, os.urandom(16))
    for leased in leases:
        leased.ended.add_done_callback(lambda _: other.ended.wait(30))
        leased.cancel()
    for leased in leases:
        assert leased.ended.result(30) == "cancelled"
    other.cancel()
    assert other.ended.result(30) == "cancelled"


FORKED = """
import os, sys, transload
from conftest import Engine
from pathlib import Path
certs = Path(sys.argv[1])
parent = Engine(certs, "prefill")
child = os.fork()
if child == 0:
    own = Engine(certs, "decode")
    own.agent.gauges()
    own.agent.shutdown(0)
    try:
        parent.agent.gauges()
    except transload.AgentError as error:
        os._exit("before the process forked" not in str(error))
    os._exit(2)
_, status = os.waitpid(child, 0)
parent.agent.gauges()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_makes_agents_of_its_own(certs):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(certs)],
        cwd=Path(__file__).parent,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
