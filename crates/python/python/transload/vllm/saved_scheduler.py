"""Decides which prefixes are loaded from the store and saved to it: the scheduler's half.

A request that comes::

    it waits                        a job looks for the longest saved prefix of it, for a while
    that goes on behind the cache   the request gets blocks, and workers are told to load into them
    it is loaded on every rank      vLLM computes the rest

A request that ends::

    its prompt is computed          its blocks stay, and a job looks what of it is not saved yet
    something is not                each rank copies its share out of the blocks; then vLLM frees them
    it is copied                    each rank saves what it has copied
    every rank has saved            a job publishes what they saved: from now on it is found
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transload import Archive, Deployment, Found, Missing, Prompt
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .config import ConfigError, ranks_of
from .content import Computed, Content, Names
from .messages import Blocks, Report, Restore, Save, Step
from .saved import Job, Jobs, Shelf
from .stats import Stats
from .weights import Unnamed
from .windows import window_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import BlockStored
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from .config import Config
    from .events import Events

logger = init_logger("vllm." + __name__)

CHUNK = Archive.TOKENS
REST_SECONDS = 10.0
"""How long a store that did not answer gets no requests. Requests that arrive in this time do not wait for it."""
SHARE = 0.25
"""The share of the cache that several requests may hold for saves. With more, a slow store would make other requests wait for blocks. A
single one may hold more, or a long prompt would never be saved."""
COMPUTED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED)
"""The ends of a request after which its blocks have valid contents."""


@dataclass
class _Look:
    """A request that may be loaded from the store."""

    by: Computed
    """Names what computes the request. Only what the same has computed is loaded."""
    job: Job | None
    found: Found | None = None
    """The longest prefix that may be loaded; the last token is computed here, for its logits."""
    saved: int = 0
    """Tokens of the longest prefix that is saved."""
    computed: int = 0
    """Tokens that were cached here when it was last asked for."""
    loading: int = 0


@dataclass
class _Saving:
    """A request that has ended, and is being saved."""

    by: Computed
    adapter: LoRARequest | None
    job: Job
    blocks: Blocks
    tokens: int
    content: bytes
    size: int
    """The number of blocks that it still has."""
    missing: Missing | None = None
    parts: dict[int, bytes | None] = field(default_factory=dict)
    events: list[BlockStored] = field(default_factory=list)
    """The events for routers, reported once the save is published."""
    is_void: bool = False
    """Whether the save must not be published."""


class SavedScheduler:
    """Decides what is loaded from the store and saved to it, in an engine's scheduler."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config, held_back: int, names: Names
    ) -> None:
        self._shelf = Shelf(vllm_config, config)
        self._names = names
        self._trusts_media = config.store_trusts_media_identifiers
        self._saves = vllm_config.kv_transfer_config.is_kv_producer
        self._ranks = ranks_of(vllm_config.parallel_config)
        self._most = int(kv_cache_config.num_blocks * SHARE)
        self._recurrent = kv_cache_config.has_mamba_layers
        self._windows = [window_of(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
        self._computed_here = max(1, held_back)
        self._deployment: Deployment | None = None
        self._rest_until = 0.0
        self._looks: dict[str, _Look] = {}
        self._unnamed: set[str] = set()
        """Requests that were counted as having no name."""
        self._by: dict[str, Computed] = {}
        """The identity of the model and adapter that compute each request with blocks."""
        self._saving: dict[str, _Saving] = {}
        self._publishing: list[tuple[Job, list[BlockStored]]] = []
        self._events: Events | None = None
        if config.kv_events:
            from .events import Events

            self._events = Events(vllm_config, kv_cache_config)
        self.stats = Stats()
        self._jobs = Jobs("store", 4, self.stats, config.store_wait_seconds)
        self._publisher = Jobs("publish", 1, self.stats, config.store_timeout_seconds)

    def take_stats(self) -> Stats:
        """Returns the figures since the last time."""
        self._shelf.count_tiers(self.stats)
        return self.stats.take()

    def take_events(self) -> list[BlockStored]:
        """Returns the events for routers since the last call."""
        return [] if self._events is None else self._events.take()

    def meet_workers(self, document: str, whole: int) -> None:
        """Takes note of how the workers lay their cache out. Blocks of `whole` tokens are moved whole."""
        if CHUNK % whole:
            raise ConfigError(f"blocks of {whole} tokens can only be moved whole, and a store keeps {CHUNK} at a time: leave it out, or change --block-size")
        self._deployment = Deployment(document)
        logger.info("prefixes are loaded from %s%s", self._shelf, ", and saved there" if self._saves else "")

    # --- loading ---------------------------------------------------------------------

    def matched_tokens(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens behind the `computed` ones are loaded; None while that is not known."""
        # At least the last token is computed.
        most = self._shared(request, request.num_prompt_tokens - self._computed_here)
        if most <= computed or request.get_skip_reading_prefix_cache() or request.resumable:
            return 0, False
        look = self._looks.get(request.request_id)
        if look is None:
            if self._is_resting():
                return 0, False
            by = self._computed(request)
            if by is None:
                return 0, False
            prompt = Content.of(request).saved(by)
            job = self._jobs.begin("find", self._find, prompt, by.weights)
            look = self._looks[request.request_id] = _Look(by, job)
        if look.job is not None:
            if not self._jobs.has_ended(look.job):
                return None, False
            found = self._answer(look.job)
            if found is not None:
                look.saved, look.found = found.tokens, found.shorten(most)
            look.job = None
        look.computed = computed
        tokens = 0 if look.found is None else look.found.tokens - computed
        return (tokens, True) if tokens > 0 else (0, False)

    def allocated(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> Restore | None:
        """Returns the loads for the workers, once a request has got blocks for `tokens` tokens from the store."""
        by = self._computed(request)
        if by is not None:
            self._by[request.request_id] = by
        look = self._looks.get(request.request_id)
        if look is None or look.found is None or not tokens:
            return None
        look.loading = tokens
        end = look.computed + tokens
        # If it is computed by something else by now, what is loaded would not go with it: workers find nothing of it.
        found = look.found.shorten(end).encode() if look.by == by else b""
        return Restore(look.by.weights, found, blocks.get_block_ids(), look.computed, tokens)

    @property
    def is_saving(self) -> bool:
        """Returns whether anything is not saved and published yet."""
        return bool(self._saving or self._publishing)

    def is_loading(self, request_id: str) -> bool:
        """Returns whether the request's external tokens come from the store."""
        look = self._looks.get(request_id)
        return look is not None and look.loading > 0

    def _computed(self, request: Request) -> Computed | None:
        """Names what computes a request. None if that has no name: then it is neither saved nor loaded."""
        try:
            return self._names.of(request)
        except Unnamed as unnamed:
            if request.request_id not in self._unnamed:
                self._unnamed.add(request.request_id)
                self._jobs.skipped("name", str(unnamed))
            return None

    def _shared(self, request: Request, tokens: int) -> int:
        """Returns how many of a prompt's first tokens may be saved or loaded, in whole token chunks.

        Clients may choose what their images are called. Without a tenant's salt, somebody could have what he calls by
        another's name loaded for the other one.
        """
        if not self._trusts_media and not request.cache_salt:
            tokens = min([tokens, *(each.mm_position.offset for each in request.mm_features)])
        return max(0, tokens) // CHUNK * CHUNK

    def _find(self, prompt: Prompt, weights: str) -> Found:
        assert self._deployment is not None
        return self._shelf.archive(self._deployment, weights).find(prompt)

    def _answer(self, job: Job) -> Found | Missing | None:
        """Returns the result of a look-up. None if it failed: then the store gets no requests for a while."""
        answer = self._jobs.end(job)
        if answer is None:
            self._rest_until = time.monotonic() + REST_SECONDS
        return answer

    def _is_resting(self) -> bool:
        return time.monotonic() < self._rest_until

    # --- each step -------------------------------------------------------------------

    def build_step(self, step: Step) -> None:
        """Adds to a step what the workers have to do."""
        for request_id, saving in list(self._saving.items()):
            if saving.missing is not None or not self._jobs.has_ended(saving.job):
                continue
            saving.missing = self._answer(saving.job)
            if saving.missing and self._names.is_still(saving.adapter, saving.by):
                step.save[request_id] = Save(saving.by.weights, saving.missing.encode(), saving.blocks, saving.tokens)
            else:
                del self._saving[request_id]
                step.let_go.append(request_id)
        for entry in [entry for entry in self._publishing if self._publisher.has_ended(entry[0])]:
            self._publishing.remove(entry)
            job, events = entry
            chunks = self._publisher.end(job) or 0
            self.stats.store_tokens("saved", chunks * CHUNK)
            # If another process has published all of it meanwhile, that one tells.
            if chunks and self._events is not None:
                self._events.tell(events)

    def hear(self, output: KVConnectorOutput) -> None:
        """Takes note of what the workers have done."""
        for request_id in output.finished_recving or ():
            look = self._looks.get(request_id)
            if look is None or not look.loading:
                continue
            if request_id in (output.failed_recving or ()):
                # It is computed: the store is not asked again.
                look.found = None
            else:
                self.stats.store_tokens("loaded", look.loading)
            look.loading = 0
        for request_id in (output.finished_sending or set()) & self._saving.keys():
            # Its blocks are vLLM's again, and what was in them waits elsewhere for the store.
            self._saving[request_id].size = 0
        report = output.kv_connector_worker_meta
        for request_id, ranks in report.parts.items() if isinstance(report, Report) else ():
            saving = self._saving[request_id]
            saving.parts |= ranks
            if len(saving.parts) == self._ranks:
                del self._saving[request_id]
                saved = [part for part in saving.parts.values() if part is not None]
                if len(saved) == self._ranks and not saving.is_void:
                    job = self._publisher.begin("publish", self._publish, saving.missing, saved, saving.by.weights)
                    self._publishing.append((job, saving.events))

    def _publish(self, missing: Missing, parts: list[bytes], weights: str) -> int:
        assert self._deployment is not None
        return self._shelf.archive(self._deployment, weights).publish(missing, parts)

    # --- saving ----------------------------------------------------------------------

    def finished(self, request: Request, blocks: Blocks, step: Step) -> bool:
        """Returns whether the blocks of a finished request stay, to be saved. It has none while it is loaded."""
        look = self._looks.pop(request.request_id, None)
        if look is not None and look.job is not None:
            self._jobs.give_up(look.job)
        by = self._by.pop(request.request_id, None)
        now = self._computed(request)
        self._unnamed.discard(request.request_id)
        tokens = self._to_save(request, blocks)
        if not tokens or self._is_resting() or look is not None and look.saved >= tokens:
            return False
        if by is None or by != now:
            return False
        prompt = Content.of(request).saved(by)
        content, size = prompt.digest(tokens), sum(map(len, blocks))
        held = sum(saving.size for saving in self._saving.values())
        if any(saving.content == content for saving in self._saving.values()):
            return False
        if held and held + size > self._most:
            self._jobs.failed("keep up", "slow", f"requests hold {held} blocks until they are saved")
            return False
        job = self._jobs.begin("compare", self._missing, prompt, tokens, by.weights)
        copied = tuple(map(list, blocks))
        saving = _Saving(by, request.lora_request, job, copied, tokens, content, size)
        if self._events is not None:
            saving.events = self._events.of(request, 0 if look is None else look.saved, tokens)
        self._saving[request.request_id] = saving
        step.keep.append(request.request_id)
        return True

    def _to_save(self, request: Request, blocks: Blocks) -> int:
        """Returns how many of a request's tokens are in its blocks, in whole token chunks; 0 if none are to be saved."""
        if not any(blocks):
            return 0
        tokens = request.num_prompt_tokens
        # Not what a step that is still under way computes.
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        if not self._saves or request.resumable or request.status not in COMPUTED or computed < tokens:
            return 0
        if self._recurrent and (tokens % CHUNK or request.num_computed_tokens != tokens):
            # There is one state, that of the last token; without it, nothing that is saved could be loaded.
            return 0
        end = self._shared(request, tokens)
        if self._recurrent and end < tokens:
            return 0
        for window, table in zip(self._windows, blocks):
            if window is not None and not window.is_there(end, table):
                return 0
        return end

    def _missing(self, prompt: Prompt, tokens: int, weights: str) -> Missing:
        assert self._deployment is not None
        state = tokens if self._recurrent else None
        return self._shelf.archive(self._deployment, weights).missing(prompt, tokens, state=state)

    # --- what was computed is void ---------------------------------------------------

    def forget(self, step: Step) -> None:
        """Cancels all loads and saves of what was computed before."""
        for look in self._looks.values():
            if look.job is not None:
                self._jobs.give_up(look.job)
            look.job = look.found = None
        self._by.clear()
        for request_id, saving in list(self._saving.items()):
            saving.is_void = True
            if saving.missing is None:
                # Workers have not been told what to save.
                self._jobs.give_up(saving.job)
                del self._saving[request_id]
                step.let_go.append(request_id)

    def shutdown(self) -> None:
        """vLLM is ending."""
        self._jobs.shutdown()
        self._publisher.shutdown()
