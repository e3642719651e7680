"""vLLM's connector: the figures that it gives to vLLM's log and to Prometheus."""

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import end_alike, load, move, prefilled, prompt


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_figures_of_loads(two_engines, caplog, mode):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2}, extra={"require": "quic"})
    assert decode.figures.is_empty()
    move(prefill, decode, prompt(100))
    params = prefilled(prefill, prompt(100))
    load(decode, prompt(100, seed=1), params)
    load(decode, prompt(100), params)
    end_alike(prefill, decode)
    data = decode.figures.data
    # Keys and values of 4 layers; a rank has 2 heads.
    share = 100 * 4 * 2 * 2 * 32 * 4
    assert data["bytes"] == [share] * 4 and data["paths"] == {"quic": 4 * share}
    assert len(data["seconds"]) == 4 and all(0 < seconds < 20 for seconds in data["seconds"])
    assert len(data["queued"]) == 4 and all(0 <= wait <= whole for wait, whole in zip(data["queued"], data["seconds"]))
    assert data["failures"] == {"content": 2} and data["leases"] == {}
    assert sum(data["chunks"].values()) > 0
    assert prefill.figures.data["leases"] == {"completed": 4} and prefill.figures.data["bytes"] == []
    reduced = decode.figures.reduce()
    assert reduced["Loads"] == 4 and reduced["Loaded MB"] == pytest.approx(4 * share / 1e6, abs=1e-3)
    assert reduced["Failed (content)"] == 2 and reduced["Median ms"] <= reduced["Longest ms"]
    assert prefill.figures.reduce()["Leases completed"] == 4
    # Its workers hear of the hand-over in their next step, and by then all was read.
    assert not [record for record in caplog.records if "before its ticket" in record.getMessage()]
    assert data["pushed"] == (4 if mode == "push" else 0)
    # All is told once.
    assert [worker.get_kv_connector_stats() for worker in decode.workers] == [None, None]


def made(connector, **data):
    stats = connector.TransloadConnector.build_kv_connector_stats()
    stats.data |= data
    return stats


def test_what_an_agent_has_counted_is_counted_once(connector):
    stats, counted = made(connector), {"busy": 1.5, "received": {"succeeded": 2}, "chunks": {256: 3}}
    for before in {}, counted:
        stats.worked(before, counted)
    assert (stats.data["busy"], stats.data["pushed"], stats.data["chunks"]) == (1.5, 2, {256: 3})


def test_figures_of_ranks_are_one(connector):
    first = made(connector, bytes=[1], seconds=[0.3], queued=[0.0], paths={"quic": 1}, failures={"expired": 1})
    second = made(connector, bytes=[2_000_000], seconds=[0.1], queued=[0.02], paths={"quic": 2, "ring": 3}, busy=0.5)
    failures = {"expired": 1, "content": 1}
    third = made(connector, bytes=[0], seconds=[0.2], queued=[0.0], failures=failures, leases={"expired": 1})
    stats = first.aggregate(second).aggregate(third)
    assert stats is first
    assert stats.data["paths"] == {"quic": 3, "ring": 3}
    assert stats.reduce() == {
        "Loads": 3,
        "Loaded MB": 2.0,
        "Median ms": 200.0,
        "Longest ms": 300.0,
        "Longest queue ms": 20.0,
        "Busy s": 0.5,
        "Failed (content)": 1,
        "Failed (expired)": 2,
        "Leases expired": 1,
    }
    # What travels to the logger is made whole there.
    again = connector.TransloadConnector.build_kv_connector_stats(stats.data)
    assert again.reduce() == stats.reduce()
    assert not stats.is_empty()
    stats.reset()
    assert stats.is_empty() and stats.reduce() == {}
    assert made(connector).data["bytes"] is not made(connector).data["bytes"]


class Metric:
    """Stands for those of prometheus_client."""

    made = {}

    def __init__(self, name, documentation, labelnames, buckets=None):
        assert documentation and name not in Metric.made
        self.labelnames, self.values = labelnames, {}
        if buckets is not None:
            assert buckets == sorted(buckets)
        Metric.made[name] = self

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        self._at = values
        return self

    def observe(self, value):
        self.values.setdefault(self._at, []).append(value)

    def inc(self, value):
        assert value >= 0
        self.values[self._at] = self.values.get(self._at, 0) + value


def test_figures_for_prometheus(connector, monkeypatch):
    monkeypatch.setattr(Metric, "made", {})
    types = dict.fromkeys(["Gauge", "Counter", "Histogram"], Metric)
    labels = ["model_name", "engine"]
    metrics = connector.TransloadConnector.build_prom_metrics(
        vllm.vllm_config(), types, labels, {0: ["m", "0"], 1: ["m", "1"]}
    )
    stats = made(connector, bytes=[7], seconds=[0.1], queued=[0.02], paths={"quic": 7}, failures={"content": 2},
                 leases={"completed": 3}, chunks={256: 4}, pushed=2, busy=0.5)  # fmt: skip
    metrics.observe(stats.data, 1)
    metrics.observe(stats.data, 1)
    metrics.observe(made(connector, failures={"expired": 1}).data)
    values = {name: metric.values for name, metric in Metric.made.items()}
    one = ("m", "1")
    assert values["vllm:transload_load_bytes"] == {one: [7, 7]}
    assert values["vllm:transload_load_seconds"] == {one: [0.1, 0.1]}
    assert values["vllm:transload_queue_seconds"] == {one: [0.02, 0.02]}
    assert values["vllm:transload_bytes"] == {(*one, "quic"): 14}
    assert values["vllm:transload_failures"] == {(*one, "content"): 4, ("m", "0", "expired"): 1}
    assert values["vllm:transload_leases_ended"] == {(*one, "completed"): 6}
    assert values["vllm:transload_chunks"] == {(*one, 256): 8}
    assert values["vllm:transload_pushed_routes"][one] == 4
    assert values["vllm:transload_busy_seconds"][one] == 1.0
    assert Metric.made["vllm:transload_bytes"].labelnames == [*labels, "path"]
