"""Loads one rank's blocks from the store, and saves them: the worker's half of the saved tier."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING, Any, Callable

from transload import CudaError, Found, Mark, Missing, Permit, Staged, Staging
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

from .messages import Restore, Save, Step
from .saved import Job, Jobs, Shelf
from .stats import Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .cache import Cache, MarkOnce
    from .config import Config


class SavedWorker:
    """Loads and saves the blocks of one rank."""

    def __init__(self, vllm_config: VllmConfig, config: Config, rank: int) -> None:
        self._shelf = Shelf(vllm_config, config)
        self._rank = rank
        self.stats = Stats()
        self._staging = Staging(int(config.store_staging_gib * 2**30))
        seconds = config.store_timeout_seconds
        # Requests wait for loads, so that these do not wait for saves; and blocks wait to be copied, so that this does not
        # wait for the store. Each job has threads of its own for hashing.
        self._loader, self._stager, self._saver = (
            Jobs(name, threads, self.stats, seconds) for name, threads in (("load", 2), ("stage", 1), ("save", 1))
        )
        self._cache: Cache | None = None
        self._loads: dict[str, Job] = {}
        self._unstaged: dict[str, Job | None] = {}
        """Requests whose blocks are kept until they are copied, with the copying job once the missing pieces are known."""
        self._saves: dict[str, Job] = {}
        self._released: set[str] = set()
        self._parts: dict[str, dict[int, bytes | None]] = {}

    def take_stats(self) -> Stats:
        """Returns the figures since the last time."""
        self._shelf.count_tiers(self.stats)
        return self.stats.take()

    def register(self, cache: Cache) -> None:
        self._cache = cache

    def begin_step(self, step: Step, mark: MarkOnce) -> None:
        """Begins what does not depend on what the step computes: the blocks to save were computed, or submitted, before. What
        has been submitted is behind `mark`."""
        self._unstaged |= dict.fromkeys(step.keep)
        for request_id in step.let_go:
            del self._unstaged[request_id]
            self._released.add(request_id)
        for request_id, save in step.save.items():
            self._unstaged[request_id] = self._begin(self._stager, "stage", self._stage, save, mark)
        for request_id, restore in step.restore.items():
            self._loads[request_id] = self._begin(self._loader, "load", self._load, restore, mark)
        for request_id in step.stop_loading:
            if request_id in self._loads:
                self._loader.give_up(self._loads[request_id])

    def _begin(
        self, jobs: Jobs, what: str, work: Callable[..., Any], request: Save | Restore, mark: MarkOnce
    ) -> Job:
        """Begins a job that touches blocks, which a GPU may have to compute, or to read, before."""
        permit = Permit()
        try:
            after = mark()
        except CudaError as error:
            return jobs.fail(what, error)
        return jobs.begin(what, work, request, permit, after, permit=permit)

    def collect(self, results: KVConnectorTransferResults) -> set[str]:
        """Adds the loads that have ended, and returns the requests whose blocks are no longer needed for saving."""
        for request_id, job in list(self._loads.items()):
            if self._loader.has_ended(job):
                del self._loads[request_id]
                results.finished_recving.add(request_id)
                if not self._loaded(job):
                    results.failed_recving.add(request_id)
        for request_id, job in list(self._unstaged.items()):
            if job is not None and self._stager.has_ended(job):
                del self._unstaged[request_id]
                self._released.add(request_id)
                staged = self._stager.end(job)
                if staged is None:
                    self._parts[request_id] = {self._rank: None}
                else:
                    self._saves[request_id] = self._saver.begin("save", self._save, *staged)
        for request_id, job in list(self._saves.items()):
            if self._saver.has_ended(job):
                del self._saves[request_id]
                self._parts[request_id] = {self._rank: self._saver.end(job)}
        released, self._released = self._released, set()
        return released

    def wait(self, seconds: float) -> None:
        """Waits until a load or a save has ended, or until the missing pieces may be known; at most for this time."""
        jobs = (*self._loads.values(), *self._unstaged.values(), *self._saves.values())
        futures = [job.future for job in jobs if job is not None]
        if futures:
            wait(futures, seconds, FIRST_COMPLETED)
        elif self._unstaged:
            time.sleep(seconds)

    def is_loading(self, request_id: str) -> bool:
        """Returns whether a load of the request is under way."""
        return request_id in self._loads

    def keeps(self, request_id: str) -> bool:
        """Returns whether the request's blocks are still needed."""
        return request_id in self._unstaged

    def take_parts(self) -> dict[str, dict[int, bytes | None]]:
        """Returns the parts that were saved, for the scheduler."""
        parts, self._parts = self._parts, {}
        return parts

    def _stage(self, save: Save, permit: Permit, after: Mark | None) -> tuple[str, Staged]:
        cache = self._cache
        assert cache is not None
        archive, tables = self._shelf.archive(cache.deployment, save.weights), cache.tables(save.blocks, save.tokens)
        missing = Missing(save.missing)
        staged = archive.stage(
            missing, cache.deployment, self._rank, cache.memories, tables, self._staging, permit=permit, after=after
        )
        return save.weights, staged

    def _save(self, weights: str, staged: Staged) -> bytes:
        assert self._cache is not None
        return self._shelf.archive(self._cache.deployment, weights).put(staged)

    def _load(self, restore: Restore, permit: Permit, after: Mark | None) -> dict[str, Any]:
        cache, found = self._cache, Found(restore.found)
        assert cache is not None
        if found.tokens != restore.start + restore.tokens:
            raise ValueError(f"{restore.tokens} tokens behind {restore.start} are asked for, {found.tokens} are saved")
        archive, tables = self._shelf.archive(cache.deployment, restore.weights), cache.tables(restore.blocks, found.tokens)
        return archive.restore(
            found,
            cache.deployment,
            self._rank,
            cache.memories,
            tables,
            start=restore.start,
            permit=permit,
            after=after,
        )

    def _loaded(self, job: Job) -> bool:
        report = self._loader.end(job)
        if report is not None:
            self.stats.store_bytes("loaded", report["bytes"])
        return report is not None

    def shutdown(self) -> None:
        """vLLM is ending. Nothing waits for a mark any more, nor begins a copy."""
        for jobs, begun in ((self._loader, self._loads), (self._stager, self._unstaged), (self._saver, self._saves)):
            for job in begun.values():
                if job is not None:
                    jobs.give_up(job)
            jobs.shutdown()
