"""vLLM's connector: prompts that one server has computed for itself, and others load from it because they ask. Who gets no answer, or a
wrong one, computes."""

import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.engine import free_ports
from vllm_stand_in.fixtures import assert_loaded, end_alike, move, prompt
from vllm_stand_in.model import Attention, mamba2

import transload

TOKENS = prompt(900)
HOLDS = {"held_share": 0.9, "held_seconds": 600}
LAYOUTS = [
    ({"tp": 2}, {"block_size": 64}),
    ({"block_size": 16, "blocks": 128}, {"tp": 2, "block_size": 96}),
    ({"order": "BLSHC"}, {"order": "LHBSC", "block_size": 64}),
]


@pytest.fixture
def holder(engine):
    """Starts engines that hold what they have computed."""
    made = []

    def start(**shape):
        made.append(engine("decode", role="kv_both", extra=HOLDS | shape.pop("extra", {}), **shape))
        return made[-1]

    yield start
    for each in made:
        held(each).shutdown()


@pytest.fixture
def asker(engine):
    """Starts engines that ask others, at these ports or engines."""

    def start(*others, **shape):
        ports = [getattr(other, "port", other) for other in others]
        extra = {"pull_from": [f"127.0.0.1:{port}" for port in ports], "ask_seconds": 10} | shape.pop("extra", {})
        return engine("decode", role="kv_both", extra=extra, **shape)

    return start


def held(engine):
    return engine.scheduler.in_scheduler.held


def answer(engine, tokens, **more):
    """Computes a request, and has its blocks held."""
    request = engine.add(tokens, max_tokens=2, **more)
    engine.run(lambda: request.finished)
    engine.step()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED


def ask(asker, others, tokens, **more):
    """Has a server answer while all of them step. Returns the request, and the memory from before."""
    before = [cache.bytes() for cache in asker.caches]
    request = asker.add(tokens, max_tokens=2, **more)
    until = time.monotonic() + 20
    while request.request_id not in asker.received and not request.finished:
        assert time.monotonic() < until, request.status
        for side in (asker, *others):
            side.step()
    return request, before


def assert_found(asker, others, tokens, count, start=0, **more):
    request, before = ask(asker, others, tokens, **more)
    assert asker.loads[request.request_id][:2] == (start, count) and asker.source is vllm.CacheHitSource.P2P
    assert_loaded(asker, request, before)
    end_alike(asker)
    assert not asker.figures.data["failures"]


def assert_computed(asker, others, tokens, **more):
    request, _ = ask(asker, others, tokens, **more)
    assert request.finished and request.request_id not in asker.loads
    end_alike(asker)


def give_back(engine):
    """Its time is over."""
    for kept in held(engine)._kept.values():
        kept.until = 0
    end_alike(engine)
    assert not any(worker._worker._held or worker._worker._released for worker in engine.workers)
    assert not held(engine)._index


@pytest.mark.parametrize(("first", "second"), LAYOUTS)
def test_another_loads_what_one_has_computed(holder, asker, first, second):
    """As often as it likes, and what it has in common with other prompts; never the last token."""
    one = holder(**first)
    two = asker(one, **second)
    answer(one, TOKENS)
    assert_found(two, [one], TOKENS, 768)
    assert_found(two, [one], TOKENS, 768)
    assert_found(two, [one], TOKENS[:600] + prompt(300, seed=1), 512)
    assert_found(two, [one], TOKENS[:512], 256)
    assert_computed(two, [one], TOKENS[:256])
    assert_computed(two, [one], prompt(900, seed=2))
    assert two.figures.data["lookups"] == {"found": 4, "none": 1}
    give_back(one)
    assert one.figures.data["leases"] == {"completed": 4 * one.ranks}
    assert_computed(two, [one], TOKENS)


def test_tenants_and_weights_are_told_apart(holder, asker):
    one = holder()
    two = asker(one)
    answer(one, TOKENS, salt="a")
    assert_computed(two, [one], TOKENS, salt="b")
    assert_computed(two, [one], TOKENS)
    assert_found(two, [one], TOKENS, 768, salt="a")
    assert_computed(asker(one, extra={"model": "other"}), [one], TOKENS, salt="a")
    give_back(one)


def test_images_are_shared_by_tenants_only(holder, asker):
    one = holder()
    two, images = asker(one), [("cat", 300, 20), ("dog", 800, 10)]
    answer(one, TOKENS, images=images)
    assert_found(two, [one], TOKENS, 256, images=images)
    answer(one, TOKENS, images=images, salt="a")
    assert_found(two, [one], TOKENS, 768, images=images, salt="a")
    # An image behind the prefix makes no difference; one within it does.
    assert_found(two, [one], TOKENS, 768, images=[images[0], ("cow", 800, 10)], salt="a")
    assert_found(two, [one], TOKENS, 256, images=[("cow", 300, 20)], salt="a")
    give_back(one)


def test_what_is_cached_here_is_not_loaded(holder, asker):
    one = holder()
    two = asker(one, prefix_caching=True)
    answer(one, TOKENS)
    two.add(TOKENS[:520], max_tokens=1)
    while two.has_requests():
        two.step()
        one.step()
    assert_found(two, [one], TOKENS, 768, start=512)
    before = dict(two.figures.data["lookups"])
    assert_computed(two, [one], TOKENS[:700])
    assert two.figures.data["lookups"] == before, "all is cached"
    give_back(one)


def test_of_several_servers_the_one_with_most(holder, asker):
    ones = [holder() for _ in range(3)]
    for one, tokens in zip(ones, (300, 768, 600)):
        answer(one, TOKENS[:tokens])
    two = asker(*ones, 1)
    assert_found(two, ones, TOKENS, 768)
    for one in ones:
        give_back(one)


def test_servers_that_have_one_list(holder, asker):
    """None loads from itself, and what one has loaded it lends on."""
    ports = [free_ports(1), free_ports(1)]
    shared = {"pull_from": [f"127.0.0.1:{port}" for port in ports], "ask_seconds": 10}
    one, two = (holder(port=port, extra=shared) for port in ports)
    answer(one, TOKENS)
    assert one.figures.data["lookups"] == {"none": 1} and not one.loads
    answer(one, TOKENS)
    assert not one.loads
    request, before = ask(two, [one], TOKENS)
    assert two.loads[request.request_id][1] == 768
    assert_loaded(two, request, before)
    two.run(lambda: request.finished)
    two.step()
    one.shutdown()
    assert_found(asker(two), [two], TOKENS, 768)
    give_back(two)


def test_a_server_that_prefills_loads_and_lends_too(holder, asker, engine):
    one, decode = holder(), engine("decode", tp=2)
    two = asker(one, extra=HOLDS)
    answer(one, TOKENS)
    request = two.add(TOKENS, {"do_remote_decode": True, "do_remote_prefill": False})
    while not request.finished:
        two.step()
        one.step()
    assert two.loads[request.request_id][1] == 768
    params = two.answers[request.request_id]
    loading = decode.add(TOKENS, params, max_tokens=2)
    decode.run(lambda: loading.finished or two.step())
    two.step()
    assert_found(asker(two), [two], TOKENS, 768)
    give_back(two)
    give_back(one)
    end_alike(decode)
    assert decode.figures.data["seconds"] and not decode.figures.data["failures"]


# --- what is held is bounded -------------------------------------------------------------


def test_blocks_are_given_up_where_they_are_needed(holder):
    one = holder(blocks=64)
    answer(one, TOKENS)
    assert one.manager.free_blocks < 40
    # Another one needs more than are left.
    request = one.add(prompt(1500, seed=1), max_tokens=2)
    one.run(lambda: request.finished)
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
    give_back(one)


def test_blocks_are_given_up_for_who_has_loaded_and_waits_for_more(holder):
    """vLLM does not ask about it again. What was released long ago, and is still being read, does not come in time for it."""
    one = holder(blocks=64)
    answer(one, TOKENS)
    held(one)._releasing["read"] = 60, time.monotonic() - 60
    held(one).allocated(SimpleNamespace(request_id="waits", num_tokens=1500), None, is_loading=True)
    one.step()
    assert not held(one)._kept
    held(one)._resuming.clear()
    give_back(one)


def test_nothing_is_held_while_vllm_pauses(holder):
    one = holder()
    answer(one, TOKENS)
    one.core.scheduler.pause_state = SimpleNamespace(name="PAUSED_NEW")
    one.core._process_input_queue()
    end_alike(one)
    answer(one, prompt(900, seed=1))
    end_alike(one)
    one.core.scheduler.pause_state = SimpleNamespace(name="UNPAUSED")
    request = one.add(TOKENS, max_tokens=2)
    one.core._process_input_queue()
    one.run(lambda: request.finished)
    assert held(one)._kept
    give_back(one)


def test_what_another_adapter_computed_is_not_lent(holder, asker, monkeypatch):
    """Workers tell of that after the step that ends a request."""
    from transload.vllm.content import Names

    one = holder()
    two = asker(one)
    monkeypatch.setattr(Names, "is_still", lambda *_: False)
    answer(one, TOKENS)
    end_alike(one)
    assert_computed(two, [one], TOKENS)


def test_what_began_with_another_adapter_is_not_held(holder, monkeypatch):
    one = holder()
    request = one.add(TOKENS, max_tokens=5)
    one.step()
    scheduler = one.scheduler.in_scheduler
    then = scheduler._named(request)
    monkeypatch.setattr(scheduler, "_named", lambda _: replace(then, adapter="another"))
    one.run(lambda: request.finished)
    end_alike(one)


def test_a_prefix_is_found_as_long_as_anybody_has_it(holder, asker):
    one = holder()
    two = asker(one)
    for seed in (1, 2):
        answer(one, TOKENS[:512] + prompt(300, seed))
    first, last = held(one)._kept.values()
    last.until = 0
    one.step()
    assert_found(two, [one], TOKENS[:520], 512)
    give_back(one)


@pytest.mark.parametrize("bound", ["share", "count", "time"])
def test_what_is_held_is_bounded(holder, monkeypatch, bound):
    if bound == "count":
        import transload.vllm.held

        monkeypatch.setattr(transload.vllm.held, "MOST_HELD", 2)
    one = holder(blocks=256, extra={"share": {"held_share": 0.3}, "count": {}, "time": {"held_seconds": 1}}[bound])
    for seed in range(5):
        answer(one, prompt(900, seed))
    if bound == "time":
        return end_alike(one)
    assert len(held(one)._kept) == 2
    newest = list(held(one)._kept)
    one.step()
    one.step()
    assert one.manager.free_blocks == one.all_blocks - 2 * 29 and list(one.requests) == newest
    # A prompt that is held already is not held twice.
    answer(one, prompt(900, 3))
    assert list(held(one)._kept) == newest[::-1]
    # More than the share is not held at all.
    if bound == "share":
        answer(one, prompt(3000, 9))
    give_back(one)


def test_tickets_are_bounded(holder, asker, monkeypatch):
    import transload.vllm.held

    monkeypatch.setattr(transload.vllm.held, "MOST_LENT", 2)
    one = holder()
    two = asker(one)
    answer(one, TOKENS)
    for _ in range(2):
        assert_found(two, [one], TOKENS, 768)
    assert_computed(two, [one], TOKENS)
    give_back(one)


def test_what_is_void_is_not_lent(holder, asker):
    one = holder()
    two = asker(one)
    answer(one, TOKENS)
    assert b"ticket" in held(one).answer(question_of(asker, TOKENS))
    assert not one.reset(), "blocks are held"
    end_alike(one)
    assert not one.figures.data["leases"]
    assert_computed(two, [one], TOKENS)


@pytest.mark.parametrize("how", ["aborted", "named otherwise", "with logprobs of the prompt"])
def test_what_is_not_held(holder, asker, how):
    one = holder()
    request = one.add(TOKENS, max_tokens=5)
    one.step()
    if how == "aborted":
        one.abort(request)
    elif how == "named otherwise":
        one.scheduler.in_scheduler.change_weights()
    if how != "with logprobs of the prompt":
        end_alike(one)
        return assert_computed(asker(one), [one], TOKENS)
    one.run(lambda: request.finished)
    # It needs all of them computed.
    assert_computed(asker(one), [one], TOKENS, logprobs=True)
    give_back(one)


# --- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gives it up", "dies"])
def test_a_server_that_dies_between_its_answer_and_the_load(holder, asker, how):
    one, two = holder(), None
    two = asker(one, extra={"connect_seconds": 1, "stall_seconds": 2})
    answer(one, TOKENS)
    request = two.add(TOKENS, max_tokens=2)
    two.run(lambda: request.request_id in two.loads)
    begun = time.monotonic()
    if how == "dies":
        one.shutdown()
    else:
        held(one)._kept[next(iter(held(one)._kept))].until = 0
    while not request.finished:
        two.step()
        if how != "dies":
            one.step()
    assert len(two.loads) == 1, "it is loaded once"
    # What has asked already is read to its end, and what has not is told at once.
    assert time.monotonic() - begun < 4
    assert sum(two.figures.data["failures"].values()) in ([1] if how == "dies" else [0, 1])
    end_alike(two)
    if how == "gives it up":
        give_back(one)


def test_what_vllm_does_not_load_is_given_back(holder, asker):
    one = holder()
    two = asker(one)
    answer(one, TOKENS)
    request = two.add(TOKENS)
    # vLLM has no room for it.
    while (found := two.scheduler.get_num_new_matched_tokens(request, 0)) == (None, False):
        time.sleep(0.01)
    assert found == (768, True)
    one.step()
    two.abort(request)
    end_alike(two)
    one.run(lambda: one.workers[0]._worker._agent.gauges()["leases"] == 0)
    give_back(one)
    assert one.figures.data["leases"] == {"cancelled": 1}


def test_what_nobody_loads_is_given_back_with_the_rest(holder, asker):
    one = holder()
    answer(one, TOKENS)
    question = question_of(asker, TOKENS)
    for _ in range(2):
        assert b"ticket" in held(one).answer(question)
        one.step()
    give_back(one)
    assert one.figures.data["leases"] == {"cancelled": 2}
    assert held(one).answer(question) == b"{}\n"


def test_what_is_not_exact_is_not_held(holder, tmp_path):
    one = holder(extra={"store": f"file://{tmp_path}/store", "store_weights": "1", "codec": "q8"}, blocks=256)
    answer(one, TOKENS)
    one.run(lambda: one.figures.data["store_tokens"].get("saved") == 768)
    give_back(one)
    request = one.add(TOKENS, max_tokens=2)
    one.run(lambda: request.finished)
    assert request.request_id in one.loads and not held(one)._kept
    end_alike(one)


def test_the_store_comes_after(holder, asker, tmp_path):
    """And is asked for what could not be loaded."""
    stored = {"store": f"file://{tmp_path}/store", "store_weights": "1"}
    one = holder(extra=stored)
    two = asker(one, extra=stored)
    answer(one, TOKENS)
    one.run(lambda: one.figures.data["store_tokens"].get("saved") == 768)
    assert_found(two, [one], TOKENS, 768)
    request = two.add(TOKENS, max_tokens=2)
    two.run(lambda: request.request_id in two.loads)
    one.shutdown()
    two.run(lambda: request.finished)
    assert two.source is vllm.CacheHitSource.DISK and two.figures.data["store_tokens"]["loaded"] == 768
    end_alike(two)


def context(certs, name, protocol):
    made = ssl.SSLContext(protocol)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if name is not None:
        made.load_cert_chain(certs / f"{name}.pem", certs / f"{name}.key")
    return made


@pytest.fixture
def liar(server_certs):
    """Starts servers that answer what a test says."""
    listening = []

    def start(answer, certs=server_certs, name="decode-0"):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def serve():
            try:
                while True:
                    with context(certs, name, ssl.PROTOCOL_TLS_SERVER).wrap_socket(server.accept()[0], server_side=True) as connection:
                        while question := connection.makefile("rb").readline():
                            for part in answer(json.loads(question)):
                                connection.sendall(part)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in listening:
        server.close()


def add(certs, name, roles):
    """Makes a certificate of the cluster."""
    if not (certs / f"{name}.pem").exists():
        command = [sys.executable, "-m", "transload", "certs", "add", str(certs), f"{name}={roles}"]
        assert subprocess.run(command, capture_output=True).returncode == 0
    return name


def said(**what):
    return json.dumps(what).encode() + b"\n"


def other_ticket(certs, tokens):
    identity = transload.Identity(certs, "decode-0")
    ranks = [("decode-0/nobody", "127.0.0.1", 1)]
    return transload.Ticket.mint(identity, bytes(16), ranks, deployment=bytes(32), incarnation=1, valid_tokens=tokens).text


ANSWERS = {
    "no JSON": lambda certs: b"{\n",
    "a list": lambda certs: b"[1]\n",
    "no ticket": lambda certs: said(tokens=768, ticket="x"),
    "a number as ticket": lambda certs: said(tokens=768, ticket=7),
    "tokens that nobody has asked for": lambda certs: said(tokens=10**9, ticket=other_ticket(certs, 10**9)),
    "a fraction": lambda certs: said(tokens=768.0, ticket=other_ticket(certs, 768)),
    "the ticket of fewer tokens": lambda certs: said(tokens=768, ticket=other_ticket(certs, 512)),
    "no end": lambda certs: b" " * 100_000,
    "nested": lambda certs: b"[" * 60_000 + b"\n",
}


@pytest.mark.parametrize("what", ANSWERS)
def test_answers_that_are_none(liar, asker, server_certs, what):
    two = asker(liar(lambda _: [ANSWERS[what](server_certs)]))
    assert_computed(two, [], TOKENS)
    assert two.figures.data["lookups"] == {"none": 1}


def test_a_ticket_of_nobody(liar, asker, server_certs):
    """It fits, and its server does not exist."""
    two = asker(liar(lambda _: [said(tokens=768, ticket=other_ticket(server_certs, 768))]), extra={"connect_seconds": 1})
    request, _ = ask(two, [], TOKENS)
    assert request.request_id in two.failed
    end_alike(two)


@pytest.mark.parametrize("pace", [3600, 0.05], ids=["never", "by and by"])
def test_an_answer_that_does_not_come(liar, asker, pace):
    goes_on = threading.Event()

    def drips(_):
        while not goes_on.wait(pace):
            yield b" "

    two = asker(liar(drips), extra={"ask_seconds": 0.3})
    begun = time.monotonic()
    assert_computed(two, [], TOKENS)
    assert time.monotonic() - begun >= 0.3
    two.run(lambda: two.scheduler.in_scheduler.peers._peers[0]._rests_until)
    goes_on.set()
    # It is left alone.
    assert_computed(two, [], TOKENS)
    assert not two.scheduler.in_scheduler.peers._looks and sum(two.figures.data["lookups"].values()) == 1


@pytest.mark.parametrize("cluster, role, is_one", [("a", "serve", True), ("b", "serve", False), ("a", "pull", False), ("", "serve", False)])
def test_whose_certificate_is_taken(cluster, role, is_one):
    """Certificates of one authority name one cluster, unless somebody has made them with other tools."""
    from transload.vllm.peers import is_of

    names = ("DNS", "transload://b/agent/x?roles=serve"), ("URI", "transload://a/agent/x?roles=serve,push")
    assert is_of(cluster, role, SimpleNamespace(getpeercert=lambda: {"subjectAltName": names})) is is_one


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Certificates of another cluster."""
    folder = tmp_path_factory.mktemp("others") / "certs"
    command = [sys.executable, "-m", "transload", "certs", "init", str(folder), "--agent=decode-0=serve,pull"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("who", ["another cluster", "one without the role"])
def test_servers_of_others_are_not_asked(liar, asker, others, server_certs, who):
    asked = []
    certs, name = (others, "decode-0") if who == "another cluster" else (server_certs, add(server_certs, "loader", "pull"))
    two = asker(liar(lambda question: asked.append(question) or [b"{}\n"], certs, name))
    assert_computed(two, [], TOKENS)
    assert not asked


STRANGERS = {"another cluster": "decode-0", "one without the role": "waiter", "no certificate": None}


@pytest.mark.parametrize("who", [*STRANGERS, "plain", "no question", "a long question", "one of the cluster"])
def test_who_gets_no_answer(holder, asker, others, server_certs, who):
    one = holder()
    answer(one, TOKENS)
    add(server_certs, "waiter", "serve,push,renew")
    request = question_of(asker, TOKENS)
    question = {"a long question": b" " * 70_000 + request, "no question": b'{"life": 1, "prefixes": 7}\n'}.get(who, request)
    got = b""
    with socket.create_connection(("127.0.0.1", one.port), 10) as plain:
        try:
            if who == "plain":
                plain.sendall(question)
                got = plain.recv(1000)
            else:
                certs = others if who == "another cluster" else server_certs
                made = context(certs, STRANGERS.get(who, "decode-0"), ssl.PROTOCOL_TLS_CLIENT)
                with made.wrap_socket(plain) as connection:
                    connection.sendall(question)
                    got = connection.recv(10_000)
        except OSError:
            pass
    assert (b"ticket" in got) == (who == "one of the cluster"), got
    # Others are answered.
    one.step()
    assert_found(asker(one), [one], TOKENS, 768)
    give_back(one)


def question_of(asker, tokens):
    """The question that an asker asks."""
    asked = []

    class Peer:
        address = "a list"

        def ask(self, question, until):
            asked.append(question)

    two = asker(1)
    two.scheduler.in_scheduler.peers._peers[:] = [Peer()]
    assert_computed(two, [], tokens)
    return asked[0]


def test_a_question_ends_a_rest(holder, asker, monkeypatch):
    from transload.vllm import engine_calls

    monkeypatch.setattr(engine_calls, "REST_SECONDS", 3600)
    one = holder()
    two = asker(one)
    answer(one, TOKENS)
    while one.scheduler._scheduler._step.hold or one.finished_req_ids:
        one.step()
    resting = threading.Thread(target=one.core._process_input_queue, daemon=True)
    resting.start()
    time.sleep(0.1)
    assert resting.is_alive()
    request = two.add(TOKENS, max_tokens=2)
    two.run(lambda: request.request_id in two.loads)
    resting.join(20)
    assert not resting.is_alive()
    one.step()
    two.run()
    assert not two.figures.data["failures"]
    give_back(one)


# --- settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"pull_from": "a:1"}, "pull_from is 'a:1': give a list of up to 32 texts HOST:PORT"),
        ({"pull_from": ["a:1"] * 33}, "give a list of up to 32 texts HOST:PORT"),
        ({"pull_from": ["a"]}, "pull_from has 'a': give HOST:PORT"),
        ({"pull_from": ["a:0"]}, "pull_from has 'a:0': give HOST:PORT"),
        ({"held_share": 1}, "held_share is 1: give a part of the cache, from 0 to below 1"),
        ({"held_seconds": 0}, "held_seconds is 0.0: give 1 to 86400 seconds"),
        ({"held_share": 0.5, "wire_codec": "q8"}, "held_share is of blocks that are exact, and wire_codec is 'q8'"),
        ({"pull_from": ["a:1"], "certs": "", "store": "file:///kv"}, "pull_from is of blocks that move between servers: give .*certs"),
    ],
)
def test_settings_that_are_wrong(connector, engine, extra, message):
    with pytest.raises(connector.ConfigError, match=message):
        engine("decode", extra=extra)


def test_models_of_which_prefixes_cannot_be_shared(connector, engine):
    groups = [Attention(range(2)), mamba2(range(2, 4))]
    with pytest.raises(connector.ConfigError, match="held_share is of prompts that others begin with, and this model has layers with wi"):
        engine("decode", groups, extra=HOLDS, model_groups=1)


def test_a_port_that_somebody_has(connector, engine):
    with socket.create_server(("0.0.0.0", 0)) as other, pytest.raises(connector.ConfigError, match="held_share is given, and TCP port"):
        engine("decode", extra=HOLDS, port=other.getsockname()[1])


def test_servers_with_tickets_are_as_before(holder, asker):
    one = holder()
    two = asker(one)
    move_both = prompt(40)
    move(one, two, move_both)
    assert not two.figures.data["lookups"]
