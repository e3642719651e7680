"""The archive in the store and the threads that wait for it, which both halves of the saved tier have.

A store may be slow, fail, or never answer, and so may a GPU that copies for it. So none of vLLM's own threads ever waits for
either: what is asked of them is a job, which a later step sees to have ended, or gives up when its time is over. And none of
their failures is an engine's: each is counted, and logged the first time.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

import vllm
from transload import Archive, Deployment, Permit
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .config import Config
    from .stats import Stats

logger = init_logger("vllm." + __name__)


MOST_TOLD = 100
"""The most kinds of failures that are remembered as logged."""


class Shelf:
    """Opens the archive of this server's model when a job first needs it."""

    def __init__(self, vllm_config: VllmConfig, config: Config) -> None:
        assert config.store is not None
        self._store = config.store
        self._sharing = config.store_engine
        self._codec = config.codec
        self._model = config.store_model or vllm_config.model_config.served_model_name
        self._lock = threading.Lock()
        self._archives: dict[str, Archive] = {}
        self._counted: dict[str, dict[str, int]] = {}
        """The counters of that archive's tiers at the last look."""

    def archive(self, deployment: Deployment, weights: str) -> Archive:
        """Returns the archive of these weights. A store that could not be opened is tried again the next time.

        Raises:
            StoreError, ArchiveError: it cannot be opened.
        """
        with self._lock:
            archive = self._archives.get(weights)
            if archive is None:
                archive = Archive(
                    self._store,
                    self._model,
                    weights,
                    deployment,
                    engine="vllm",
                    engine_version=vllm.__version__,
                    sharing=self._sharing,
                    codec=self._codec,
                )
                # Those of weights that were before are not needed again.
                self._archives, self._counted = {weights: archive}, {}
            return archive

    def count_tiers(self, stats: Stats) -> None:
        """Counts what each tier of the store has done since the last time."""
        with self._lock:
            for archive in self._archives.values():
                for tier in archive.tiers():
                    stats.tier_did(tier, self._counted.get(tier["tier"], {}))
                    self._counted[tier["tier"]] = tier

    def __str__(self) -> str:
        codec = "" if self._codec == "exact" else f", codec {self._codec}"
        return f"{self._store} (model {self._model!r}{codec})"


class Jobs:
    """Runs jobs that wait for the store in threads of their own, each with a limit in `seconds`. All methods must be called on the engine's
    thread."""

    def __init__(self, name: str, threads: int, stats: Stats, seconds: float) -> None:
        self._threads, self._count = ThreadPoolExecutor(threads, thread_name_prefix=f"transload-{name}"), threads
        self._stats, self._seconds = stats, seconds
        self._stuck: list[Future] = []
        """Cancelled jobs that have not returned. Each still has a thread."""
        self._told: set[tuple[str, str]] = set()

    def begin(self, what: str, work: Callable[..., Any], *arguments: Any, permit: Permit | None = None) -> Job:
        """Begins a job. `what` is a word for counters; with a `permit` it touches blocks."""
        self._stuck = [future for future in self._stuck if not future.done()]
        if len(self._stuck) < self._count:
            return Job(what, self._threads.submit(_timed, work, *arguments), permit)
        return self.fail(what, TimeoutError("all its threads are busy"))

    def fail(self, what: str, error: Exception) -> Job:
        """Returns a job that has failed before it could begin."""
        failed: Future = Future()
        failed.set_exception(error)
        return Job(what, failed, None)

    def has_ended(self, job: Job) -> bool:
        """Returns whether a job has ended or was cancelled, as it is after its time limit. Nothing touches its blocks any more."""
        if not job.future.done() and not job.is_given_up and time.monotonic() - job.begun >= self._seconds:
            self.give_up(job)
            self.failed(job.what, "slow", f"no answer after {self._seconds} s")
        return job.is_over

    def give_up(self, job: Job) -> None:
        """Wants a job no more: if it has not begun it will not, and if it has, it begins no further copy of blocks. It is over
        when the last one is."""
        if job.is_given_up:
            return
        job.is_given_up = True
        if not job.future.cancel() and not job.future.done():
            self._stuck.append(job.future)
        if job.permit is not None:
            job.permit.revoke()

    def end(self, job: Job) -> Any:
        """Returns the result of an ended job. None if it failed or was cancelled."""
        if job.is_given_up:
            return None
        error = job.future.exception()
        if error is not None:
            self.failed(job.what, type(error).__name__, str(error))
            return None
        value, seconds = job.future.result()
        self._stats.store_did(job.what, seconds)
        return value

    def failed(self, what: str, kind: str, why: str) -> None:
        """Counts a failure, and logs it if it is the first of its kind."""
        self._stats.store_failed(what)
        if (what, kind) not in self._told:
            self._told.add((what, kind))
            logger.error("the store fails to %s: %s; more of this kind is counted, not logged", what, why)

    def skipped(self, what: str, why: str) -> None:
        """Counts an operation that was not requested from the store, and logs each reason once."""
        self._stats.store_failed(what)
        if (what, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((what, why))
            logger.warning("nothing is saved or loaded: %s; more of this kind is counted, not logged", why)

    def shutdown(self) -> None:
        """Ends the threads, and drops jobs that have not begun. Python waits for the others when it ends, so cancel jobs before. A copy
        that a store or a GPU never ends delays the exit for as long as it hangs."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass
class Job:
    what: str
    future: Future
    permit: Permit | None
    begun: float = field(default_factory=time.monotonic)
    is_given_up: bool = False

    @property
    def is_over(self) -> bool:
        """Returns whether nothing waits for the job any more, and nothing touches its blocks."""
        return self.future.done() or self.is_given_up and (self.permit is None or self.permit.is_quiet)


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    begun = time.monotonic()
    return work(*arguments), time.monotonic() - begun
