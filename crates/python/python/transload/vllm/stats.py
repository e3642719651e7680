"""Figures of transfers, for vLLM's log and for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

_STORE = {
    "tokens": ("what", "Tokens of prompts loaded from the store, or saved to it."),
    "bytes": ("what", "Bytes loaded from the store, on all ranks."),
    "calls": ("call", "Calls of the store that went well, by what they were for."),
    "seconds": ("call", "How long these calls have taken together."),
    "failures": ("call", "Calls of the store that failed or took too long, and saves skipped because it is slow."),
    "tier_hits": ("tier", "Chunks and manifests that were read from a tier."),
    "tier_bytes": ("tier", "Bytes of these."),
    "tier_misses": ("tier", "Chunks and manifests that a tier was asked for and did not have, or had damaged."),
    "tier_failures": ("tier", "Times that a tier did not answer and the next one was asked."),
    "tier_promotions": ("tier", "Chunks and manifests that were put into a tier since they were read below it."),
    "tier_skipped": ("tier", "Copies that a tier refused, being full or broken."),
}
"""The figures of the store: the label of each count, and its description."""


@dataclass
class Stats(KVConnectorStats):
    """Counts what has happened since the last look, on one rank or on several."""

    data: dict[str, Any] = field(default_factory=lambda: Stats._empty())

    @staticmethod
    def _empty() -> dict[str, Any]:
        return {
            "bytes": [],  # of each load
            "seconds": [],  # of each load, with those in the queue
            "queued": [],  # of each load, until its first byte was asked for
            "paths": {},  # bytes by the path they took
            "chunks": {},  # how many jointly contiguous chunks, by their bytes, rounded up to a power of two
            "failures": {},  # loads by why they failed
            "leases": {},  # by how they ended
            "drafts": {},  # loads without caches of drafts: the source had none, or this server takes none
            "lookups": {},  # requests that other servers were asked for, by what came of it
            "pushed": 0,  # routes, each from one rank to one other, that an owner has pushed into blocks here
            "busy": 0.0,  # seconds with a transfer under way, added up over ranks
        } | {f"store_{name}": {} for name in _STORE}

    def reset(self) -> None:
        self.data = self._empty()

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def take(self) -> Stats:
        """Returns the figures, and begins anew."""
        taken = Stats(self.data)
        self.reset()
        return taken

    def loaded(self, report: dict[str, Any], seconds: float) -> None:
        """Counts a load whose blocks are here."""
        self.data["bytes"].append(report["bytes"])
        self.data["seconds"].append(seconds)
        self.data["queued"].append(report["queued"])
        for route in report["routes"]:
            _add(self.data["paths"], route["path"], route["bytes"])

    def failed(self, kind: str) -> None:
        """Counts a load that failed on this rank."""
        _add(self.data["failures"], kind, 1)

    def looked_up(self, answer: str) -> None:
        """Counts a request that other servers were asked for."""
        _add(self.data["lookups"], answer, 1)

    def skipped_drafts(self, what: str) -> None:
        """Counts a load that came without caches of drafts, because one side has none."""
        _add(self.data["drafts"], what, 1)

    def store_did(self, call: str, seconds: float) -> None:
        """Counts a call of the store that went well."""
        _add(self.data["store_calls"], call, 1)
        _add(self.data["store_seconds"], call, seconds)

    def store_failed(self, call: str) -> None:
        """Counts a call of the store that failed, or took too long."""
        _add(self.data["store_failures"], call, 1)

    def store_tokens(self, what: str, tokens: int) -> None:
        """Counts tokens that were loaded from the store, or saved to it."""
        _add(self.data["store_tokens"], what, tokens)

    def store_bytes(self, what: str, size: int) -> None:
        """Counts bytes of this rank that were loaded from the store."""
        _add(self.data["store_bytes"], what, size)

    def tier_did(self, now: dict[str, Any], before: dict[str, int]) -> None:
        """Counts what a tier of the store has done between two looks."""
        for name in _STORE:
            _, is_of_tier, what = name.partition("tier_")
            if is_of_tier and (more := now[what] - before.get(what, 0)):
                _add(self.data[f"store_{name}"], now["tier"], more)

    def lease_ended(self, end: str) -> None:
        """Counts a lease that has ended."""
        _add(self.data["leases"], end, 1)

    def worked(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Counts what an agent's own counters have counted between two looks."""
        self.data["busy"] += now["busy"] - before.get("busy", 0.0)
        self.data["pushed"] += now["received"]["succeeded"] - before.get("received", {}).get("succeeded", 0)
        for size, count in now["chunks"].items():
            if more := count - before.get("chunks", {}).get(size, 0):
                _add(self.data["chunks"], size, more)

    def aggregate(self, other: KVConnectorStats) -> Stats:
        for name, value in other.data.items():
            if isinstance(value, list):
                self.data[name].extend(value)
            elif isinstance(value, (int, float)):
                self.data[name] += value
            else:
                for key, count in value.items():
                    _add(self.data[name], key, count)
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds = sorted(self.data["seconds"])
        figures: dict[str, int | float] = {}
        if seconds:
            figures |= {
                "Loads": len(seconds),
                "Loaded MB": round(sum(self.data["bytes"]) / 1e6, 3),
                "Median ms": round(seconds[len(seconds) // 2] * 1e3, 2),
                "Longest ms": round(seconds[-1] * 1e3, 2),
                "Longest queue ms": round(max(self.data["queued"]) * 1e3, 2),
            }
        if self.data["busy"]:
            figures["Busy s"] = round(self.data["busy"], 3)
        figures |= {f"Failed ({kind})": count for kind, count in sorted(self.data["failures"].items())}
        figures |= {f"Drafts {what}": count for what, count in sorted(self.data["drafts"].items())}
        figures |= {f"Look-ups ({answer})": count for answer, count in sorted(self.data["lookups"].items())}
        figures |= {f"Leases {end}": count for end, count in sorted(self.data["leases"].items())}
        figures |= {f"Tokens {what} (store)": count for what, count in sorted(self.data["store_tokens"].items())}
        figures |= {f"Failed (store, {call})": count for call, count in sorted(self.data["store_failures"].items())}
        return figures


class PromMetrics(KVConnectorPromMetrics):
    """Hands these figures to Prometheus, under names that begin with ``vllm:transload_``."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._seconds = self._histogram_cls(
            name="vllm:transload_load_seconds",
            documentation="Time from a load's begin on a rank until its blocks were there, or were seen to be.",
            buckets=[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60],
            labelnames=labelnames,
        )
        self._loads = self._histogram_cls(
            name="vllm:transload_load_bytes",
            documentation="Bytes of a load on a rank.",
            buckets=[4**power for power in range(6, 18)],
            labelnames=labelnames,
        )
        self._queued = self._histogram_cls(
            name="vllm:transload_queue_seconds",
            documentation="Time from a load's begin on a rank until its first bytes were on their way.",
            buckets=[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60],
            labelnames=labelnames,
        )
        self._busy = self._counter_cls(
            name="vllm:transload_busy_seconds",
            documentation="Wall-clock time with a transfer under way, added up over ranks.",
            labelnames=labelnames,
        )
        self._pushed = self._counter_cls(
            name="vllm:transload_pushed_routes",
            documentation="Routes, each from one rank to one other, that a prefill server has pushed into blocks here.",
            labelnames=labelnames,
        )
        self._chunks = self._counter("chunks", "Chunks moved, by their bytes, rounded up to a power of two.", "size")
        self._bytes = self._counter("bytes", "Bytes loaded, by the path they took.", "path")
        self._failures = self._counter("failures", "Loads that failed on a rank, by kind.", "kind")
        self._leases = self._counter("leases_ended", "Leases of this server that ended, by how.", "end")
        self._drafts = self._counter(
            "drafts", "Loads of a rank whose drafts were zeroed, or skipped, because only one of the two servers has any.", "what"
        )
        self._lookups = self._counter("lookups", "Requests whose prompt other servers were asked for, by what came of it.", "answer")
        self._store = {
            f"store_{name}": self._counter(f"store_{name}", documentation, label)
            for name, (label, documentation) in _STORE.items()
        }

    def _counter(self, name: str, documentation: str, label: str):
        return self._counter_cls(
            name=f"vllm:transload_{name}", documentation=documentation, labelnames=[*self._labelnames, label]
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for seconds in transfer_stats_data["seconds"]:
            self._seconds.labels(*labels).observe(seconds)
        for size in transfer_stats_data["bytes"]:
            self._loads.labels(*labels).observe(size)
        for seconds in transfer_stats_data["queued"]:
            self._queued.labels(*labels).observe(seconds)
        self._busy.labels(*labels).inc(transfer_stats_data["busy"])
        self._pushed.labels(*labels).inc(transfer_stats_data["pushed"])
        counters = {"paths": self._bytes, "chunks": self._chunks, "failures": self._failures, "leases": self._leases}
        counters |= {"drafts": self._drafts, "lookups": self._lookups}
        for name, metric in (counters | self._store).items():
            for key, count in transfer_stats_data[name].items():
                metric.labels(*labels, key).inc(count)


def _add(counts: dict[Any, Any], key: Any, count: float) -> None:
    counts[key] = counts.get(key, 0) + count
