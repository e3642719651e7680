"""Loads of one rank's blocks from the store, and saves of them: the worker's half of the saved tier."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING, Any

from transload import Found, Missing
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

from .messages import Restore, Save, Step
from .saved import Job, Jobs, Shelf
from .stats import Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .cache import Cache
    from .config import Config


class SavedWorker:
    """One for each rank."""

    def __init__(self, vllm_config: VllmConfig, config: Config, rank: int) -> None:
        self._shelf = Shelf(vllm_config, config)
        self._rank = rank
        self.stats = Stats()
        # Requests wait for loads, so that these do not wait for saves. Each job has threads of its own for hashing.
        self._loader, self._saver = Jobs("load", 2, self.stats), Jobs("save", 1, self.stats)
        self._cache: Cache | None = None
        self._loads: dict[str, Job] = {}
        self._kept: dict[str, Job | None] = {}
        """Requests whose blocks stay; with the save, once it is known what is missing."""
        self._over: set[str] = set()
        self._parts: dict[str, dict[int, bytes | None]] = {}

    def register(self, cache: Cache) -> None:
        """vLLM has allocated its cache."""
        self._cache = cache

    def begin_step(self, step: Step) -> None:
        """Begins what does not depend on what the step computes: the blocks to save were computed before."""
        self._kept |= dict.fromkeys(step.keep)
        for request_id in step.let_go:
            del self._kept[request_id]
            self._over.add(request_id)
        for request_id, save in step.save.items():
            self._kept[request_id] = self._saver.begin("save", self._save, save)
        for request_id, restore in step.restore.items():
            self._loads[request_id] = self._loader.begin("load", self._load, restore)
        for request_id in step.stop_loading:
            if request_id in self._loads:
                self._loads[request_id].future.cancel()

    def collect(self, results: KVConnectorTransferResults) -> set[str]:
        """Adds the loads that have ended. The requests whose blocks are no longer needed for saving."""
        for request_id, job in list(self._loads.items()):
            if job.is_done:
                del self._loads[request_id]
                results.finished_recving.add(request_id)
                if job.future.cancelled() or not self._loaded(job):
                    results.failed_recving.add(request_id)
        for request_id, job in list(self._kept.items()):
            if job is not None and job.is_done:
                del self._kept[request_id]
                self._over.add(request_id)
                self._parts[request_id] = {self._rank: self._saver.end(job)}
        over, self._over = self._over, set()
        return over

    def wait(self, seconds: float) -> None:
        """Waits until a load or a save has ended, or until what is missing may be known; at most so long."""
        jobs = [job.future for job in (*self._loads.values(), *self._kept.values()) if job is not None]
        if jobs:
            wait(jobs, seconds, FIRST_COMPLETED)
        elif self._kept:
            time.sleep(seconds)

    def keeps(self, request_id: str) -> bool:
        """Whether the request's blocks are still needed."""
        return request_id in self._kept

    def take_parts(self) -> dict[str, dict[int, bytes | None]]:
        """What was saved, for the scheduler."""
        parts, self._parts = self._parts, {}
        return parts

    def _save(self, save: Save) -> bytes:
        cache = self._cache
        assert cache is not None
        archive = self._shelf.archive(cache.deployment, save.weights)
        return archive.save(
            Missing(save.missing), cache.deployment, self._rank, cache.memories, cache.tables(save.blocks)
        )

    def _load(self, restore: Restore) -> dict[str, Any]:
        cache, found = self._cache, Found(restore.found)
        assert cache is not None
        if found.tokens != restore.start + restore.tokens:
            raise ValueError(f"{restore.tokens} tokens behind {restore.start} are asked for, {found.tokens} are saved")
        archive = self._shelf.archive(cache.deployment, restore.weights)
        tables = cache.tables(restore.blocks)
        cache.clear(restore.blocks, restore.start, restore.tokens)
        return archive.restore(found, cache.deployment, self._rank, cache.memories, tables, start=restore.start)

    def _loaded(self, job: Job) -> bool:
        report = self._loader.end(job)
        if report is not None:
            self.stats.store_bytes("loaded", report["bytes"])
        return report is not None

    def shutdown(self) -> None:
        """vLLM is ending."""
        self._loader.shutdown()
        self._saver.shutdown()
