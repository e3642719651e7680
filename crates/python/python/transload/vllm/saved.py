"""What both halves of the saved tier share: the archive in the store, and the threads that wait for it.

A store may be slow, or fail. So nothing of vLLM's own threads ever waits for it: what is asked of it is a job, which a
later step sees to have ended. And none of its failures is an engine's: each is counted, and logged the first time.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

import vllm
from transload import Archive, Deployment
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .config import Config
    from .stats import Stats

logger = init_logger("vllm." + __name__)


MOST_TOLD = 100
"""How many kinds of failures are remembered as logged."""


class Shelf:
    """The archive of this server's model; it is opened when it is first needed, by the job that needs it."""

    def __init__(self, vllm_config: VllmConfig, config: Config) -> None:
        assert config.store is not None
        self._store = config.store
        self._sharing = config.store_engine
        self._model = config.store_model or vllm_config.model_config.served_model_name
        self._lock = threading.Lock()
        self._archives: dict[str, Archive] = {}

    def archive(self, deployment: Deployment, weights: str) -> Archive:
        """The archive of these weights. A store that could not be opened is tried again the next time.

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
                )
                # Those of weights that were before are not needed again.
                self._archives = {weights: archive}
            return archive

    def __str__(self) -> str:
        return f"{self._store} (model {self._model!r})"


class Jobs:
    """What is asked of the store, in threads of its own. All methods are for one thread, that of the engine."""

    def __init__(self, name: str, threads: int, stats: Stats) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"transload-{name}")
        self._stats = stats
        self._told: set[tuple[str, str]] = set()

    def begin(self, what: str, work: Callable[..., Any], *arguments: Any) -> Job:
        """Begins a job. `what` is a word for counters."""
        return Job(what, self._threads.submit(_timed, work, *arguments))

    def end(self, job: Job) -> Any:
        """What a job that is done has returned; None if it failed."""
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
        """Counts what was not asked of the store, and logs each reason once."""
        self._stats.store_failed(what)
        if (what, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((what, why))
            logger.warning("nothing is saved or loaded: %s; more of this kind is counted, not logged", why)

    def shutdown(self) -> None:
        """What has not begun will not begin."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Job:
    """One thing that is asked of the store."""

    def __init__(self, what: str, future: Future) -> None:
        self.what, self.future, self.begun = what, future, time.monotonic()

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def has_taken(self, seconds: float) -> bool:
        """Whether it was begun so long ago."""
        return time.monotonic() - self.begun >= seconds


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    begun = time.monotonic()
    return work(*arguments), time.monotonic() - begun
