"""Keeps in any store what vLLM's own OffloadingConnector offloads: a secondary tier behind its host memory.

vLLM loads it by its name, in ``kv_connector_extra_config`` of the OffloadingConnector::

    "spec_name": "TieringOffloadingSpec", "secondary_tiers": [
        {"type": "TransloadTier", "module_path": "transload.vllm.tier", "store": "file:///var/kv"}]

vLLM names a chunk of blocks by the hash of all tokens up to its end, and its bytes lie as this server's cache does. So chunks are objects of a
namespace that names all else that decides what the bytes are. vLLM calls a tier in its scheduler's thread, so what waits for the store is a job
of another one, with a bounded time. A job that is given up touches vLLM's memory no more: bytes go through memory of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import numpy as np
import vllm
from transload import Objects
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.platforms import current_platform
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingCounterMetadata, OffloadingEvent, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from . import engine_calls
from .config import BEFORE, ConfigError, is_told, typed
from .events import MOST
from .saved import Job, Jobs
from .saved_scheduler import REST_SECONDS
from .weights import Unnamed, Weights, before_loading

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata, OffloadingSpec, OffloadKey, ReqContext, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
    from vllm.v1.kv_offload.tiering.base import TransferJob

ENGINE = "_engine"
"""The key of an `Engine` among a tier's settings, with which it travels to the engine's process. It is no setting of an operator's."""
SHARE = 0.25
"""The share of vLLM's memory for chunks that several saves may hold while the store takes them; a single save may hold more."""
SLICE = 64 << 20
"""The bytes that each thread moves at once, through its own memory; at least a chunk."""
FAILURES = "vllm:transload_tier_failures"


@dataclass(frozen=True)
class Settings:
    """Holds the settings of a tier; the guide says what each means."""

    store: str
    weights: str | None = None
    reset_keeps_weights: bool = False
    wait_seconds: float = 2.0
    timeout_seconds: float = 30.0
    enable_kv_events: bool = False
    locality: str | None = None

    @classmethod
    def read(cls, given: dict[str, Any]) -> Settings:
        """Raises ConfigError if one is missing, unknown, or wrong."""
        kinds = {"bool": bool, "float": (int, float)}
        known = {each.name: kinds.get(str(each.type), str) for each in dataclasses.fields(cls)}
        for name, value in ({"store": ""} | given).items():
            at = f"secondary_tiers.{name}"
            if name not in known:
                raise ConfigError(f"{at} is not a setting of TransloadTier: there are {', '.join(known)}")
            typed(at, value, known[name])
            if name == "store" and "://" not in value:
                raise ConfigError(f"{at} is {value!r}: give a URI, as file:///var/kv")
            if name == "locality" and value not in ("LOCAL", "REMOTE"):
                raise ConfigError(f"{at} is {value!r}: give LOCAL or REMOTE")
            if name.endswith("_seconds") and not 0 <= value <= 86_400:
                raise ConfigError(f"{at} is {value}: give 0 to 86400 seconds")
        return cls(**given)


class Engine:
    """Holds what a tier needs of vLLM's configuration and is not given by vLLM. It has the attributes that `Weights` reads."""

    def __init__(self, config: VllmConfig) -> None:
        cache, drafts, attention = config.cache_config, config.speculative_config, config.attention_config
        self.model_config, self.load_config = config.model_config, config.load_config
        self.kv_transfer_config = SimpleNamespace(kv_connector_extra_config={BEFORE: before_loading(config.model_config)})
        kinds = config.model_config.dtype, cache.cache_dtype, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
        # These decide the bytes of a chunk, together with what `_layout` takes from the offloading spec.
        self.facts = {
            "vllm": vllm.__version__,
            "hashes": [cache.prefix_caching_hash_algo, _seed(cache.prefix_caching_hash_algo)],
            "dtypes": [*map(str, kinds), *cache.kv_cache_dtype_skip_layers],
            "interleave": config.parallel_config.cp_kv_cache_interleave_size,
            "attention": [config.use_v2_model_runner, str(attention.backend), str(attention.backend_per_kind)],
            "drafts": drafts and [str(drafts.method), str(drafts.model), str(drafts.revision)],
        }


def check_early(config: VllmConfig, given: dict[str, Any]) -> None:
    """Checks a tier's entry in the configuration before vLLM loads the model, and records the engine there.

    Raises:
        ConfigError: it names the setting or option, and what it has to be.
    """
    given.pop(ENGINE, None)
    settings = Settings.read({name: value for name, value in given.items() if name not in ("type", "module_path", "backpressure")})
    if settings.enable_kv_events and not is_told(config):
        raise ConfigError("secondary_tiers.enable_kv_events adds to vLLM's own events: start the server with --kv-events-config")
    if config.lora_config is not None and not settings.weights:
        raise ConfigError(
            "--enable-lora: vLLM's hashes hold no more of adapters than their names, so give secondary_tiers.weights, a text of your own that "
            "is another for other weights and for other adapters of the same names"
        )
    given[ENGINE] = Engine(config)


def _seed(algorithm: str) -> str:
    """Returns the seed of vLLM's token hashes, if it is the same in other processes."""
    seed, again = (resolve_none_hash_seed(get_hash_fn_by_name(algorithm)) for _ in range(2))
    if seed != again:
        raise ConfigError(
            f"--prefix-caching-hash-algo {algorithm} has random hashes in each process, so that nothing in the store is found again: "
            "take sha256, or set PYTHONHASHSEED to one value for all servers"
        )
    return seed


class Gate:
    """Lets a job's thread access vLLM's memory until the job is cancelled."""

    def __init__(self) -> None:
        self._lock, self._is_revoked = threading.Lock(), False

    def revoke(self) -> None:
        """Lets it in no more."""
        self._is_revoked = True

    @property
    def is_quiet(self) -> bool:
        """Returns whether it is not within. After `revoke` that stays so."""
        return not self._lock.locked()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._is_revoked:
            self._lock.release()
            raise TimeoutError("it was given up")

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


@dataclass
class _Look:
    """Remembers whether a chunk is stored, for as long as the request that asked for it lasts."""

    found: bool | None = None
    requests: set[str] = field(default_factory=set)


@dataclass
class _Transfer:
    """A load or a save that vLLM waits for."""

    number: int
    keys: list[OffloadKey]
    jobs: Jobs
    job: Job
    moved: list[OffloadKey]
    """The chunks that are loaded, or saved, by now. The job's thread adds to it."""


class TransloadTier(SecondaryTierManager):
    """Keeps chunks as objects of a store."""

    medium = Medium.STORAGE

    def __init__(
        self, offloading_spec: OffloadingSpec, primary_kv_view: memoryview, tier_type: str,
        backpressure_detector: BackpressureDetector | None = None, **given: Any,
    ) -> None:  # fmt: skip
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        engine = given.pop(ENGINE, None)
        if not isinstance(engine, Engine):
            raise ConfigError("TransloadTier needs the plugin `transload`: list it in VLLM_PLUGINS if that is set, and use vLLM's EngineArgs")
        settings = self._settings = Settings.read(given)
        self.locality = None if settings.locality is None else Locality(settings.locality)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._facts = _layout(offloading_spec) | engine.facts | {"row": self.block_size_bytes}
        self._model = Path(offloading_spec.config.model.name).name
        self._weights = Weights(engine, is_asked=not settings.weights)
        if "collective_rpc" in engine_calls.follow() and not settings.reset_keeps_weights:
            self._weights.distrust("this vLLM does not tell when it changes weights in place; reset_keeps_weights says that it never does")
        engine_calls.TIERS.add(self)
        self._opening, self._objects, self._stats = threading.Lock(), None, OffloadingConnectorStats()
        # vLLM itself counts loads and saves of tiers, with their bytes and times.
        counts = SimpleNamespace(store_did=lambda call, seconds: None, store_failed=self._count_failure)
        self._finder = Jobs("tier-find", 2, counts, settings.wait_seconds)
        self._loader, self._saver = (Jobs(f"tier-{name}", 4, counts, settings.timeout_seconds) for name in ("load", "save"))
        self._rest_until = 0.0
        self._looks: dict[OffloadKey, _Look] = {}
        self._asked_by: dict[str, set[OffloadKey]] = {}
        self._unasked: dict[OffloadKey, _Look] = {}
        self._finds: list[tuple[Job, list[_Look]]] = []
        self._transfers: list[_Transfer] = []
        self._ended: list[JobResult] = []
        told = settings.enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: deque[OffloadingEvent] = deque(maxlen=MOST if told else 0)

    # --- what is there ---------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        try:
            self._weights.name(self._settings.weights)
        except Unnamed as unnamed:
            self._finder.skipped("name", str(unnamed))
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        look = self._looks.get(key)
        if look is None:
            if self._named() is None:
                return LookupResult.MISS
            look = self._looks[key] = _Look()
            self._unasked[key] = look
        elif look.found is None:
            self._hear()
        look.requests.add(req_context.req_id)
        self._asked_by.setdefault(req_context.req_id, set()).add(key)
        if look.found is None:
            # A request does not wait for a store that does not answer.
            return LookupResult.MISS if self._is_resting() else LookupResult.RETRY
        return LookupResult.HIT if look.found else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._hear()
        asked, self._unasked = self._unasked, {}
        weights = self._named()
        if asked and weights is not None:
            self._finds.append((self._finder.begin("find", self._find, weights, list(asked)), list(asked.values())))
        else:
            for look in asked.values():
                look.found = False

    def on_request_finished(self, req_context: ReqContext) -> None:
        for key in self._asked_by.pop(req_context.req_id, ()):
            look = self._looks[key]
            look.requests.discard(req_context.req_id)
            if not look.requests:
                del self._looks[key]

    def _hear(self) -> None:
        """Takes note of what look-ups have found."""
        for entry in [entry for entry in self._finds if self._finder.has_ended(entry[0])]:
            self._finds.remove(entry)
            job, asked = entry
            found = self._finder.end(job)
            if found is None:
                self._rest()
            for look, there in zip(asked, found or [False] * len(asked)):
                look.found = there

    def _find(self, weights: str, keys: list[OffloadKey]) -> list[bool]:
        return [there is not None and there.bytes == self.block_size_bytes for there in self._open(weights).has(keys)]

    # --- loads and saves -------------------------------------------------------------

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._begin(job_metadata, self._loader, "load", self._load)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._begin(job_metadata, self._saver, "save", self._save)

    def _begin(self, asked: TransferJob, jobs: Jobs, what: str, work: Callable[..., bool]) -> None:
        keys, rows, is_load = list(asked.keys), [int(row) for row in asked.chunk_ids], what == "load"
        weights, moved, gate = self._named(), [], Gate()
        held = sum(len(each.keys) for each in self._transfers if each.jobs is self._saver)
        if not is_load and held and held + len(keys) > len(self._rows) * SHARE:
            jobs.failed("keep up", "slow", f"saves hold {held} chunks of vLLM's memory until the store has them")
            weights = None
        if weights is None:
            self._ended.append(JobResult(asked.job_id, False))
            if is_load:
                self._know(keys, False)
            return
        job = jobs.begin(what, work, weights, keys, rows, gate, moved, permit=gate)
        self._transfers.append(_Transfer(asked.job_id, keys, jobs, job, moved))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        for each in [each for each in self._transfers if each.jobs.has_ended(each.job)]:
            self._transfers.remove(each)
            self._end(each)
        ended, self._ended = self._ended, []
        return ended

    def _end(self, transfer: _Transfer) -> None:
        job, keys = transfer.job, transfer.keys
        has_returned = transfer.jobs.end(job) is not None
        moved = list(transfer.moved)
        is_whole, loaded = len(moved) == len(keys), None
        is_load = transfer.jobs is self._loader
        if not is_load:
            self._know(moved, True)
        elif not is_whole:
            loaded = moved or None
            # Or vLLM would ask for them again and again.
            self._know(set(keys).difference(moved), False)
            if has_returned:
                transfer.jobs.failed("load", "damaged", "chunks that were found are gone or damaged")
        # A store that is full can still be read.
        if not has_returned and (is_load or job.is_given_up):
            self._rest()
        if moved and not is_load:
            self._events.append(OffloadingEvent(keys=moved, medium=self.medium, removed=False, locality=self.locality))
        seconds, size = time.monotonic() - job.begun, len(moved) * self.block_size_bytes
        self._ended.append(JobResult(transfer.number, is_whole, loaded, transfer_time=seconds, transfer_bytes=size))

    def _know(self, keys: Iterable[OffloadKey], found: bool) -> None:
        for key in keys:
            if key in self._looks:
                self._looks[key].found = found

    def _load(self, weights: str, keys: list[OffloadKey], rows: list[int], gate: Gate, moved: list[OffloadKey]) -> bool:
        objects = self._open(weights)
        for part, into, buffers in self._slices(keys, rows):
            for key, row, buffer, there in zip(part, into, buffers, objects.get(part, list(buffers))):
                if there is not None:
                    with gate:
                        np.copyto(self._rows[row], buffer)
                        moved.append(key)
        return True

    def _save(self, weights: str, keys: list[OffloadKey], rows: list[int], gate: Gate, moved: list[OffloadKey]) -> bool:
        objects = self._open(weights)
        for part, out_of, buffers in self._slices(keys, rows):
            with gate:
                for row, buffer in zip(out_of, buffers):
                    np.copyto(buffer, self._rows[row])
            objects.put(part, list(buffers))
            moved += part
        return True

    def _slices(self, keys: list[OffloadKey], rows: list[int]) -> Iterator[tuple[list[OffloadKey], list[int], np.ndarray]]:
        """Returns parts of a job, with memory for the bytes of each."""
        count = max(1, SLICE // self.block_size_bytes)
        for first in range(0, len(keys), count):
            part = slice(first, first + count)
            yield keys[part], rows[part], np.empty((len(keys[part]), self.block_size_bytes), np.uint8)

    # --- the store -------------------------------------------------------------------

    def _open(self, weights: str) -> Objects:
        """Opens the store when a job first needs it. The weights keep their name, or lose it for good."""
        with self._opening:
            if self._objects is None:
                facts = json.dumps(self._facts | {"weights": weights}, sort_keys=True)
                digest = hashlib.blake2b(facts.encode(), digest_size=20).hexdigest()
                self._objects = Objects(self._settings.store, f"vllm-tier {self._model[:1000]} {digest}", threads=2)
            return self._objects

    def _named(self) -> str | None:
        """Returns the name of the weights. None if they have none, or the store is left alone."""
        try:
            return None if self._is_resting() else self._weights.name(self._settings.weights)
        except Unnamed:
            return None

    def _rest(self) -> None:
        """Leaves the store alone for a while."""
        self._rest_until = time.monotonic() + REST_SECONDS

    def _is_resting(self) -> bool:
        return time.monotonic() < self._rest_until

    # --- the rest --------------------------------------------------------------------

    def take_events(self) -> Iterable[OffloadingEvent]:
        events = list(self._events)
        self._events.clear()
        return events

    def drain_jobs(self) -> None:
        """Gives everything up: vLLM clears its caches, as it does where weights change in place."""
        if not self._settings.reset_keeps_weights:
            self.change_weights()
        rest_until = self._rest_until
        for each in self._transfers:
            each.jobs.give_up(each.job)
        for each in self._transfers:
            while not each.job.is_over:
                time.sleep(0.0005)
            self._end(each)
        self._transfers.clear()
        self._rest_until = rest_until

    def change_weights(self) -> None:
        """Records that weights may change in place. vLLM does not tell tiers what was computed before and what after."""
        self._weights.distrust("vLLM may have changed the weights in place: the tier rests until the server is started again")

    def shutdown(self) -> None:
        self.drain_jobs()
        for job, _ in self._finds:
            self._finder.give_up(job)
        for jobs in (self._finder, self._loader, self._saver):
            jobs.shutdown()
        self._weights.shutdown()
        # vLLM takes the memory away.
        del self._rows

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        says = "Calls of the store of a tier that failed, took too long, or were skipped."
        return {FAILURES: OffloadingCounterMetadata(documentation=says, labelnames=("call",))}

    def _count_failure(self, call: str) -> None:
        self._stats.increase_counter(FAILURES, 1, (call,))

    def get_stats(self) -> OffloadingConnectorStats | None:
        taken, self._stats = self._stats, OffloadingConnectorStats()
        return None if taken.is_empty() else taken


def _layout(spec: OffloadingSpec) -> dict[str, Any]:
    """Returns the byte layout of a chunk, as an offloading spec states it."""
    config, parallel = spec.config, spec.config.parallel
    return {
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "worker": config.worker_kv_bytes_per_block,
        "cache": [config.model.dtype, config.cache.tokens_per_hash, config.cache.blocks_per_chunk],
        "ranks": [parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "layout": [str(config.kv_cache_layout), config.canonical_layout, config.replicated_layout],
        "device": [current_platform.device_type, str(current_platform.get_device_capability())],
    }
