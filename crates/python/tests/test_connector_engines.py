"""vLLM's connector: the engines of one server with data parallelism, each of which is on its own."""

import time

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.engine import free_ports
from vllm_stand_in.fixtures import end_alike, load, move, prefilled, prompt, refuse

import transload

TOKENS = prompt(100)


@pytest.fixture
def server(engine):
    """Starts the engines of a server. Those of a dense model believe to be the only one."""

    def start(agent, engines, *, experts=False, **shape):
        made = []
        # Of each engine up to four ranks; the ports of all are neighbours.
        port = free_ports(4 * engines)
        for index in range(engines):
            parallel = {"data_parallel_size": engines if experts else 1, "data_parallel_index": index, "data_parallel_rank_local": index}
            made.append(engine(agent, parallel=parallel, port=port, **shape))
        return made

    return start


def agents(engine):
    return [(address.agent.partition("/")[2], address.port) for address in (worker.get_handshake_metadata() for worker in engine.workers)]


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_every_engine_has_ports_and_a_name(server, experts):
    first, second = server("decode", 2, experts=experts, tp=2)
    port = first.port
    names = [transload.default_instance(port), transload.default_instance(port + 2)]
    assert agents(first) == [(f"{names[0]}-0", port), (f"{names[0]}-1", port + 1)]
    assert agents(second) == [(f"{names[1]}-0", port + 2), (f"{names[1]}-1", port + 3)]


def test_every_engine_has_a_name_below_the_given_one(server):
    engines = server("decode", 3, extra={"instance": "blue"})
    assert [agents(each)[0][0] for each in engines] == ["blue", "blue-dp1", "blue-dp2"]


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_tickets_find_their_engine(server, experts, mode):
    """Whoever of a server prefills, and whoever of another decodes; they have one certificate."""
    prefills = server("prefill", 2, experts=experts, tp=2)
    decodes = server("decode", 3, experts=experts, block_size=64, extra={"mode": mode})
    for at, prefill in enumerate(prefills):
        for number, decode in enumerate(decodes):
            move(prefill, decode, prompt(100, seed=10 * at + number))


def test_engines_of_both_roles_load_from_each_other(server):
    """A ticket is its own engine's only: another one of the same server loads with it."""
    first, second = server("decode", 2, role="kv_both")
    move(first, second, TOKENS)
    params = prefilled(second, prompt(80, seed=1))
    request = second.add(prompt(80, seed=1), params)
    second.run()
    assert request.request_id not in second.loads
    end_alike(first, second)


def test_an_engine_that_was_started_again(server, engine):
    first, second = server("prefill", 2)
    [decode] = server("decode", 1)
    tickets = [prefilled(each, TOKENS) for each in (first, second)]
    second.shutdown()
    parallel = {"data_parallel_index": 1, "data_parallel_rank_local": 1}
    again = engine("prefill", parallel=parallel, port=first.port)
    refuse(decode, TOKENS, tickets[1], "restarted")
    decode.figures.reset()
    load(decode, TOKENS, tickets[0])
    assert not decode.figures.data["failures"]
    decode.run()
    move(again, decode, prompt(60, seed=3))
    end_alike(first, decode)


@pytest.mark.parametrize("named", [True, False])
def test_a_ticket_of_an_engine_that_has_moved(server, engine, named):
    """Where it was is another engine now, of its name or not."""
    extra = {"instance": "blue"} if named else {}
    first, second = server("prefill", 2, extra=extra)
    [decode] = server("decode", 1, extra={"timeout_seconds": 2})
    params = prefilled(second, TOKENS)
    port = second.port + 1
    for each in first, second:
        each.shutdown()
    moved = engine("prefill", port=port, extra=extra)
    refuse(decode, TOKENS, params, "unreachable" if named else "restarted")
    decode.figures.reset()
    move(moved, decode, TOKENS)


def test_two_engines_of_one_index(engine):
    first = engine("decode")
    config = vllm.vllm_config(**first._options, backends=first.caches[0].backends())
    vllm.ranks = vllm.Ranks(1)
    second = first._connector(config, vllm.KVConnectorRole.WORKER, first.caches[0].config())
    with pytest.raises(transload.AgentError, match=rf"{first.port}.*in use"):
        second.register_kv_caches({name: tensor for name, tensor in first.caches[0].tensors.items()})


@pytest.mark.parametrize(
    ("parallel", "is_told"),
    [
        ({"data_parallel_index": 0}, True),
        ({"data_parallel_index": 1, "data_parallel_rank_local": 1}, False),
        # On another host, without a URL of its own.
        ({"data_parallel_index": 8, "data_parallel_rank_local": 0}, False),
        ({"data_parallel_index": 8, "data_parallel_rank_local": 0, "data_parallel_hybrid_lb": True}, True),
        ({"data_parallel_index": 9, "data_parallel_rank_local": 1, "data_parallel_hybrid_lb": True}, False),
        ({"data_parallel_index": 1, "data_parallel_rank_local": 0, "data_parallel_external_lb": True, "data_parallel_size": 2}, True),
    ],
)
def test_who_announces_a_url(connector, parallel, is_told):
    from transload.vllm import startup

    extra = {"certs": "certs", "announce": "etcd://e:2379/t", "announce_url": "http://10.0.1.1:8000"}
    config = vllm.vllm_config(extra=extra, parallel=parallel)
    announced = startup.check(config, config.kv_transfer_config).announcements("kv_producer")
    assert bool(announced) == is_told


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_an_engine_that_only_holds_blocks_does_not_hold_others_up(server, monkeypatch, experts):
    """Engines that share experts take each step together."""
    from transload.vllm import worker

    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.5)
    prefill, _ = server("prefill", 2, experts=experts)
    prefilled(prefill, TOKENS)
    prefill.step()
    waited = []
    wait = worker.Worker._wait_a_moment
    monkeypatch.setattr(worker.Worker, "_wait_a_moment", lambda half: waited.append(time.monotonic()) or wait(half))
    prefill.step()
    assert bool(waited) != experts


def test_an_engine_in_a_wave_does_not_rest(server, monkeypatch):
    from transload.vllm import engine_calls

    prefill, _ = server("prefill", 2, experts=True)
    prefilled(prefill, TOKENS)
    while prefill.scheduler._scheduler._step.handed_over or prefill.finished_req_ids:
        prefill.step()
    prefill.core.engines_running = True
    rests = []
    monkeypatch.setattr(engine_calls, "_only_holds_blocks", lambda core, ask=engine_calls._only_holds_blocks: rests.append(ask(core)))
    prefill.core._process_input_queue()
    prefill.core.engines_running = False
    prefill.core._process_input_queue()
    assert rests == [False, True]
