"""Real agents: leases, pulls and pushes over QUIC and shared memory."""

import asyncio
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from conftest import CONTENT, LENGTH, TABLES, Engine, fill
from test_package import typed_dict

import transload

BYTES = LENGTH * 4 * 2 * 256
"""Tokens, layers and heads, each of keys and values of 64 elements of 2 bytes."""


@pytest.mark.parametrize(("paths", "path"), [("any", "ring"), ("local", "ring"), ("quic", "quic")])
@pytest.mark.parametrize("how", ["pulled", "pushed by the owner"])
def test_a_pull_delivers_every_byte(pair, paths, path, how):
    fill(pair.prefill.memories[0][0])
    set = os.urandom(16)
    leased, ticket = pair.lease(set)
    assert (leased.set, leased.rank) == (set, 0)
    into = None if how == "pulled" else pair.decode.ticket(os.urandom(16), LENGTH, push=True)
    report = pair.pull(transload.Ticket(ticket.text), paths=paths, into=into).ended.result(30)
    assert report["bytes"] == BYTES
    assert {route["rank"] for route in report["routes"]} == {0, 1}
    assert {route["path"] for route in report["routes"]} == {path}
    assert report.keys() == typed_dict("TransferReport")
    assert report["routes"][0].keys() == typed_dict("RouteReport")
    assert leased.ended.result(30) == "completed"
    assert pair.is_right()
    assert pair.prefill.agent.gauges()["leases"] == 0
    if into is not None:
        # Where it cannot be opened, nothing is begun.
        with pytest.raises(transload.TransferError, match="has ended already") as raised:
            pair.pull(ticket, into=into)
        assert raised.value.kind == "request"


@pytest.mark.parametrize("by_layer", [True, False])
def test_a_push_delivers_every_byte(pair, by_layer):
    fill(pair.prefill.memories[0][0])
    opened, ticket = pair.open()
    transfer = pair.push(ticket, prefilled=False, by_layer=by_layer)
    time.sleep(0.2)
    for layer in range(4) if by_layer else ():
        transfer.ready(0, layer, LENGTH)
    transfer.finish_prefill()
    report = transfer.ended.result(30)
    assert report["bytes"] == BYTES and (report["queued"] >= 0.2 or by_layer)
    assert [lease.ended.result(30) for lease in opened] == ["completed"] * 2
    assert pair.is_right()
    pushed, received = pair.prefill.agent.metrics(), pair.decode.agent.metrics()
    assert (pushed["pushes"]["begun"], pushed["pushes"]["succeeded"]) == (1, 1)
    assert (received["received"]["begun"], received["received"]["succeeded"]) == (2, 2)
    assert pushed["bytes_out"] == received["bytes_in"] and sum(pushed["bytes_out"].values()) == BYTES
    assert received["served"]["begun"] == pushed["served"]["begun"] == 0


def test_a_pull_may_come_before_its_lease(pair):
    set = os.urandom(16)
    transfer = pair.pull(pair.prefill.ticket(set, LENGTH))
    assert not transfer.ended.wait(0.3)
    leased, _ = pair.lease(set, prefilled=False)
    assert not transfer.ended.wait(0.3)
    for layer in range(4):
        leased.ready(layer, LENGTH)
    leased.finish_prefill()
    assert transfer.ended.result(30)["bytes"] > 0


def test_completions_can_be_awaited_and_called_back(pair):
    async def pull():
        leased, ticket = pair.lease()
        return (await pair.pull(ticket).ended)["bytes"], await leased.ended

    assert asyncio.run(pull()) == (BYTES, "completed")
    leased, _ = pair.lease()
    assert leased.ended == leased.ended and len({leased.ended, leased.ended}) == 1
    told, unwanted, done = [], [], threading.Event()
    remove = unwanted.append
    for callback in told.append, lambda _: done.set(), remove:
        leased.ended.add_done_callback(callback)
    assert leased.ended.remove_done_callback(remove)
    assert not leased.ended.remove_done_callback(remove)
    leased.cancel()
    assert done.wait(30)
    assert told == [leased.ended] and not unwanted
    afterwards = []
    leased.ended.add_done_callback(afterwards.append)
    assert [ended.result(0) for ended in afterwards] == ["cancelled"]


def test_waiting_lets_other_threads_run(pair):
    leased, _ = pair.lease()
    counted = []

    def cancel_later():
        for _ in range(20):
            time.sleep(0.01)
            counted.append(None)
        leased.cancel()

    thread = threading.Thread(target=cancel_later)
    thread.start()
    assert leased.ended.result(30) == "cancelled"
    thread.join()
    assert len(counted) == 20


def test_callbacks_that_wait_keep_nobody_waiting(pair):
    leases, (other, _) = [pair.lease()[0] for _ in range(6)], pair.lease()
    for leased in leases:
        leased.ended.add_done_callback(lambda _: other.ended.wait(30))
        leased.cancel()
    for leased in leases:
        assert leased.ended.result(30) == "cancelled"
    other.cancel()
    assert other.ended.result(30) == "cancelled"


def test_what_goes_wrong_is_told(pair):
    def fails(ticket, **more):
        with pytest.raises(transload.TransferError) as raised:
            pair.pull(ticket, timeout=20, **more).ended.result(30)
        return raised.value.kind

    leased, ticket = pair.lease()
    assert fails(ticket, content=transload.Prompt([*range(29), 7]).digest()) == "content"
    # More tokens than the ticket covers, a forged ticket, a ticket of the other kind.
    assert fails(pair.prefill.ticket(leased.set, 20)) == "request"
    assert fails(transload.Ticket(ticket.text[:-4] + "AAAA")) == "ticket"
    assert fails(pair.prefill.ticket(leased.set, LENGTH, push=True)) == "ticket"
    with pytest.raises(transload.TransferError, match="is block 99") as raised:
        pair.pull(ticket, tables=[[99]])
    assert raised.value.kind == "request"
    # It is still whole for who has the right one, once.
    pair.pull(ticket).ended.result(30)
    assert leased.ended.result(30) == "completed"
    assert fails(ticket) == "consumed"
    leased, ticket = pair.lease(ttl=0.05)
    assert leased.ended.result(30) == "expired"
    assert fails(ticket) == "expired"
    with pytest.raises(transload.LeaseError):
        leased.renew(1)
    with pytest.raises(transload.TicketError, match="begins with"):
        transload.Ticket("not a ticket")


@pytest.mark.parametrize(
    ("rank", "tables", "message"),
    [
        (3, TABLES[0], "rank"),
        (0, [], "gives 0 block tables for 1 groups"),
        (0, [[5]], "has 1 blocks, 2 are needed"),
        (0, [[5, 16]], "is block 16, but there are 16 blocks"),
    ],
)
def test_blocks_that_cannot_be_leased_are_refused_at_once(pair, rank, tables, message):
    with pytest.raises(transload.LeaseError, match=message):
        pair.prefill.agent.lease(os.urandom(16), rank, tables, CONTENT, LENGTH)


def test_sides_of_two_models_are_told(certs):
    prefill, decode = Engine(certs, "prefill", heads=4), Engine(certs, "decode", heads=2)
    set = os.urandom(16)
    prefill.agent.lease(set, 0, TABLES[0], CONTENT, LENGTH)
    transfer = decode.agent.pull(prefill.ticket(set, LENGTH), [0], [[6, 7]], CONTENT, LENGTH)
    with pytest.raises(transload.TransferError, match="heads") as raised:
        transfer.ended.result(30)
    assert raised.value.kind == "incompatible" and raised.value.is_misfit
    for engine in (prefill, decode):
        engine.agent.shutdown(0)


def test_leases_are_renewed_and_given_up_by_ticket(pair):
    leased, ticket = pair.lease(ttl=5)
    left = pair.decode.agent.renew(ticket, 30).result(30)
    assert left is not None and 5 < left <= 31
    assert pair.decode.agent.cancel(ticket).result(30) == (1, 1)
    assert leased.ended.result(30) == "cancelled"


def test_tickets_are_secrets_that_say_what_they_are_for(pair):
    prefill, set = pair.prefill, os.urandom(16)
    ticket = prefill.ticket(set, LENGTH, start=7, push=True, time_left=5.0)
    # Whoever is of the cluster can read it.
    claims = transload.Ticket(ticket.text).open(pair.decode.identity)
    assert claims == {
        "set": set,
        "push": True,
        "deployment": prefill.agent.deployment_digest,
        "incarnation": prefill.agent.incarnation,
        "start": 7,
        "valid_tokens": LENGTH,
        "ranks": [(prefill.agent.name, "127.0.0.1", prefill.agent.port)],
        "time_left": 5.0,
    }
    assert claims.keys() == typed_dict("Claims")
    with pytest.raises(transload.TicketError, match="sealed"):
        transload.Ticket(ticket.text[:-4] + "AAAA").open(pair.decode.identity)
    assert ticket.text.startswith("tl1.")
    assert ticket.text not in repr(ticket) and "ticket#" in repr(ticket)
    assert pickle.loads(pickle.dumps(ticket)).text == ticket.text


def test_content_is_told_apart():
    tokens, more = list(range(LENGTH)), {"adapter": "a", "multimodal": [("b", 3, 4)], "salt": "c", "embeddings": bytes(32)}
    plain, whole = transload.Prompt(tokens), transload.Prompt(tokens, **more)
    alone = [transload.Prompt(tokens, **{name: value}) for name, value in more.items()]
    assert len({each.digest() for each in (plain, whole, *alone)} | {plain.digest(29)}) == 7
    assert plain.digest(29) == transload.Prompt(tokens[:29]).digest()
    copy = pickle.loads(pickle.dumps(whole))
    assert len(copy) == LENGTH and copy.digest() == whole.digest()
    with pytest.raises(ValueError, match="31 tokens are said to be valid"):
        plain.digest(31)
    with pytest.raises(OverflowError):
        transload.Prompt([-1])


def test_an_agent_needs_what_its_deployment_says(certs):
    identity = transload.Identity(certs, "prefill")
    engine = Engine(certs, "decode")
    for memories, bind, error, message in [
        ({0: [transload.Memory.allocate([8])]}, None, transload.AgentError, "are needed"),
        ({1: engine.memories[0]}, None, transload.AgentError, "rank 1 is not of this deployment"),
        (engine.memories, "localhost", ValueError, "address and a port"),
    ]:
        with pytest.raises(error, match=message):
            transload.Agent(identity, engine.deployment, memories, **({"bind": bind} if bind else {}))
    with pytest.raises(transload.IdentityError):
        transload.Identity(Path(certs) / "nowhere")
    engine.agent.shutdown(0)
    with pytest.raises(transload.AgentError, match="stopped"):
        engine.agent.lease(bytes(16), 0, TABLES[0], CONTENT, LENGTH)


PARTS = {
    "pulls": "TransferMetrics", "pushes": "TransferMetrics", "served": "RouteMetrics", "received": "RouteMetrics",
    "bytes_in": "PathBytes", "bytes_out": "PathBytes", "leases": "LeaseMetrics",
}  # fmt: skip


def test_metrics_count_what_was_done(pair):
    metrics = pair.prefill.agent.metrics()
    assert metrics.keys() == typed_dict("AgentMetrics")
    for key, of in PARTS.items():
        assert metrics[key].keys() == typed_dict(of), key

    def pull(paths, waits=0.0):
        set, begun = os.urandom(16), time.monotonic()
        transfer = pair.pull(pair.prefill.ticket(set, LENGTH), paths=paths)
        time.sleep(waits)
        leased, _ = pair.lease(set)
        report = transfer.ended.result(30)
        assert waits <= report["queued"] <= report["seconds"] <= time.monotonic() - begun
        assert leased.ended.result(30) == "completed"
        return report

    reports = [pull("quic", 0.3), pull("local")]
    done = pair.decode.agent.metrics()
    assert (done["pulls"]["begun"], done["pulls"]["succeeded"], done["pulls"]["failed"]) == (2, 2, {})
    for key in ("seconds", "queued"):
        assert done["pulls"][key] == pytest.approx(sum(r[key] for r in reports))
    assert done["bytes_in"] == {"quic": BYTES, "ring": BYTES, "device": 0}
    assert not any(done["bytes_out"].values())
    # Twice 30 tokens of 4 layers and 2 heads, 256 bytes each. Here the tokens of a head lie together, as far as they are
    # of one block there: 16 and 14 of them. There each lies apart.
    assert done["chunks"] == {4096: 2 * 2 * 4 * 2}
    # It was not busy while it waited for the lease.
    assert 0 < done["busy"] < done["pulls"]["seconds"] - 0.3 + 0.01
    owner = pair.prefill.agent.metrics()
    assert (owner["served"]["begun"], owner["served"]["succeeded"]) == (4, 4)
    assert owner["bytes_out"] == done["bytes_in"] and not any(owner["bytes_in"].values())
    assert owner["chunks"] == {256: 2 * LENGTH * 4 * 2}
    assert owner["pulls"]["begun"] == 0 and owner["served"]["seconds"] > 0

    # What fails, and what is left.
    pair.lease()[0].cancel()
    leased, ticket = pair.lease(ttl=0.05)
    assert leased.ended.result(30) == "expired"
    with pytest.raises(transload.TransferError):
        pair.pull(ticket).ended.result(30)
    assert pair.decode.agent.metrics()["pulls"]["failed"] == {"expired": 1}
    ends = dict.fromkeys(typed_dict("LeaseMetrics"), 0) | {"opened": 4, "completed": 2, "cancelled": 1, "expired": 1}
    assert pair.prefill.agent.metrics()["leases"] == ends


def test_options_are_those_of_the_agent(certs):
    life = transload.new_incarnation()
    assert transload.new_incarnation() != life
    options = {"incarnation": life, "early_wait": 0.1, "notice_wait": 1, "keep_idle": 5.0}
    options |= {"stall_seconds": 5, "connect_seconds": 2.5}
    prefill = Engine(certs, "prefill", options=options)
    assert prefill.agent.incarnation == life
    decode = Engine(certs, "decode", options={"lanes": 1, "lane_ports": (21000, 21999)})
    # It takes less than the ten seconds that a pull waits for its lease by default.
    ticket = prefill.ticket(os.urandom(16), LENGTH)
    with pytest.raises(transload.TransferError) as raised:
        decode.agent.pull(ticket, [0], [[6, 7]], CONTENT, LENGTH, timeout=5).ended.result(30)
    assert raised.value.kind == "unknown"
    # Local ports of all UDP sockets.
    lines = Path("/proc/net/udp").read_text().splitlines()[1:]
    assert {int(line.split()[1].split(":")[1], 16) for line in lines} & {*range(21000, 22000)}
    for engine in (prefill, decode):
        engine.agent.shutdown(0)


WRONG_SECONDS = [(-1, "-1"), (0, "0"), (1e6, "1000000"), (float("nan"), "NaN"), (float("inf"), "inf")]


def test_options_that_are_wrong(certs):
    seconds = "{} is {}: give seconds, from 0.1 to 86400$"
    for options, error, message in [
        ({"lanes": 0}, transload.AgentError, "lanes is 0; it must be 1 to 256"),
        ({"lanes": 3, "lane_ports": (21000, 21001)}, transload.AgentError, "lane_ports has 2 ports for 3 lanes"),
        ({"lane_ports": (0, 99)}, transload.AgentError, "lane_ports is 0..=99"),
        *(({name: -1}, ValueError, f"{name} is -1") for name in ("early_wait", "notice_wait", "keep_idle")),
        *(
            ({name: wrong}, ValueError, seconds.format(f"^{name}", shown))
            for name in ("stall_seconds", "connect_seconds")
            for wrong, shown in WRONG_SECONDS
        ),
    ]:
        with pytest.raises(error, match=message):
            Engine(certs, "decode", options=options)
