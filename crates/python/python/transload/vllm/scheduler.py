"""Decides which requests are lent or loaded, and when: the half of the connector in vLLM's scheduler.

A request that is prefilled here for somebody else::

    its last prompt token is scheduled   workers are told to lease its blocks when the step is over
    it is finished                       a ticket goes out with the answer; the blocks stay
    the lease ends on every rank         vLLM frees the blocks

    or others want blocks, and no decode server has asked for these: the lease is ended, the oldest first

A request that was prefilled elsewhere::

    it waits                             its leases are renewed
    it gets blocks                       workers are told to pull into those that are not cached here,
                                         or to have the owner of the leases push into them
    it is loaded on every rank           vLLM computes its last token again, and goes on

No ticket goes out before its request is finished, and none if it has other blocks then. So the lease of a request that
is preempted or aborted before is one that nobody can use, whatever becomes of its blocks meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from transload import Prompt, Ticket, TicketError
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .adapters import Adapters
from .config import ConfigError, ranks_of
from .content import Computed, Content, Names
from .held import Held
from .messages import NULL_BLOCK, Blocks, Lend, Load, Part, RankAddress, Report, Step
from .overlap import PARAMETER as OVERLAP
from .overlap import LIFE, Overlap, piece_ends
from .peers import Peers
from .saved_scheduler import SavedScheduler
from .specs import PAGES
from .stats import Stats
from .weights import Unnamed, Weights
from .windows import Uncached, has_rings, has_windows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from .config import Config

logger = init_logger("vllm." + __name__)

PARAMETER = "transload_ticket"
"""The field of ``kv_transfer_params`` that the ticket travels in."""

MOST_TOLD = 100
"""The most reasons that are remembered as logged."""
MOST_ANSWERING = 1024
"""The most requests with several answers that are remembered."""


@dataclass
class _Lending:
    """A request that is prefilled for another server."""

    request: Request
    content: Content
    computed: Computed | None = None
    """The identity of what computes it, if it is known and unchanged since its blocks were allocated."""
    lent: Lend | None = None
    """Its lease, once the last prompt token is scheduled."""
    overlap: Overlap | None = None
    """Names its lease sets, if a decode server may load it while it is prefilled."""
    ahead: int = 0
    """The number of pieces that were lent. A piece is lent once: what a preemption has taken back comes with the whole prompt."""
    is_lent_again: bool = False
    """Whether a lease of the whole prompt was taken back. The next one needs another name, since each is used once."""


@dataclass
class _Waiting:
    """A request that was prefilled elsewhere, and has no blocks yet."""

    ticket: Ticket | None
    """None if it came without one that could be read."""
    lease_seconds: float
    """The duration of the lease, from each renewal."""
    renewed: float
    overlap: Overlap | None = None
    """Names its lease sets, if it may not be prefilled yet."""
    start: int = 0
    """The first token that is not cached here."""
    computed: Computed | None = None
    """Names what computes the request here. Only blocks that the same has computed are loaded."""
    is_void: bool = False
    """Whether vLLM has cleared its caches or changed the weights since the request came."""
    unnamed: str = ""
    """The reason for which the request is computed here in place of being loaded."""


class Scheduler:
    """Decides what is lent and loaded. Each engine has one, in the process of its scheduler."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config, untold: set[str]
    ) -> None:
        """`untold`: the engine calls of `engine_calls.WITHOUT` that this vLLM does not report."""
        self._config = config
        self._transfer_config = vllm_config.kv_transfer_config
        ranks = ranks_of(vllm_config.parallel_config)
        self._identity = config.identity(0)
        asks = (config.certs is not None and not config.model, config.store is not None and not config.store_weights)
        self._weights = Weights(vllm_config, is_asked=any(asks))
        if "collective_rpc" in untold and not config.reset_keeps_weights:
            self._weights.distrust("this vLLM does not tell when it changes weights in place; reset_keeps_weights says that it never does")
        self._adapters = Adapters(ranks, are_replaced_unseen="add_lora" in untold)
        self._names = Names(self._weights, self._adapters, config.model)
        self._told: set[str] = set()
        """Reasons that were logged, for which prompts got no ticket."""
        self._held_back = _held_back(vllm_config, kv_cache_config)
        self._whole = 1
        """Prompts for others are prefilled up to a multiple of this many tokens, since some blocks are only moved whole."""
        self.saved: SavedScheduler | None = None
        if config.store is not None:
            names = Names(self._weights, self._adapters, config.store_weights)
            self.saved = SavedScheduler(vllm_config, kv_cache_config, config, self._held_back, names)
        self._manager: KVCacheManager | None = None
        self._kv_cache_config = kv_cache_config
        # Whatever its role, a server loads from a store.
        loads = self._transfer_config.is_kv_consumer or config.store is not None
        self._caches_windows = loads and vllm_config.cache_config.enable_prefix_caching and has_windows(kv_cache_config)
        self._uncached: Uncached | None = None
        self._ranks: list[RankAddress] = []
        self._lending: dict[str, _Lending] = {}
        self._most_unclaimed = int(kv_cache_config.num_blocks * config.unclaimed_share)
        self._unclaimed: dict[str, set[int]] = {}
        """The blocks of requests that were handed over, and that no decode server has asked for, the oldest first."""
        self._waiting: dict[str, _Waiting] = {}
        self._loading: dict[str, Ticket | None] = {}
        """The ticket of each request that is being loaded; None for one from the store."""
        self._most_early = int(kv_cache_config.num_blocks * config.overlap_share)
        self._early: dict[str, int] = {}
        """The number of blocks of each request that is loaded while it is prefilled."""
        self._is_divided = not (has_windows(kv_cache_config) or has_rings(kv_cache_config) or kv_cache_config.has_mamba_layers)
        """Whether pieces of a prompt can be loaded: no layer drops tokens, or keeps data that depends on where a prompt ends."""
        self.peers: Peers | None = None
        self.held: Held | None = None
        if config.pull_from or config.held_share:
            self._refuse_undivided()
            assert self._identity is not None
            if config.pull_from:
                self.peers = Peers(config, self._identity)
            if config.held_share:
                self.held = Held(config, self._identity, kv_cache_config, self._ticket_held)
        self._inexact: set[str] = set()
        """Requests whose blocks hold anything that was restored with a codec, or computed on that, until the blocks are freed."""
        self._answering: dict[str, Ticket] = {}
        """The ticket of each of the last requests that want several answers."""
        self._announcements = config.announcements(vllm_config.kv_transfer_config.kv_role)
        self._step = Step()
        self._falls_asleep = False

    def bind_manager(self, manager: KVCacheManager) -> None:
        self._manager = manager
        if self._caches_windows:
            self._uncached = Uncached(manager, self._kv_cache_config)

    def meet_workers(self, workers: dict[tuple[int, int], RankAddress]) -> None:
        """Takes note of the workers' addresses, which tickets name."""
        for worker in workers.values():
            if not isinstance(worker, RankAddress):
                # MultiConnector hands on what the first of its connectors says, to all of them.
                raise ConfigError(
                    f"the workers' addresses are those of another connector ({type(worker).__name__}): within MultiConnector "
                    "only one connector may have addresses, so take TransloadConnector without the other"
                )
        self._ranks = [workers[key] for key in sorted(workers)]
        first = self._ranks[0]
        for number, rank in enumerate(self._ranks):
            if (rank.deployment, rank.incarnation) != (first.deployment, first.incarnation):
                raise RuntimeError(f"rank {number} lays its cache out otherwise than rank 0, or is of an earlier start")
        groups = json.loads(first.document)["group"]
        self._whole = math.lcm(*(group["spec"][0]["tokens_per_state"] for group in groups if group["name"].startswith(PAGES)))
        # A block whose order is not known may be written again until the whole prompt is computed.
        self._is_divided &= self._whole == 1
        if self.peers is not None or self.held is not None:
            self._refuse_undivided()
        if self.peers is not None:
            self.peers.meet_workers(first.incarnation)
        if self.held is not None:
            self.held.begin(first.incarnation)
        if self._identity is not None:
            # What cannot be in a ticket is told now, and not by the first request.
            self._ticket_into(2**40, 2**40)
        if self.saved is not None:
            self.saved.meet_workers(first.document, self._whole)
        for announcement in self._announcements:
            # vLLM does not tell when it begins to listen: until then the proxy's probes fail.
            announcement.begin()

    def _refuse_undivided(self) -> None:
        if not self._is_divided:
            name = "pull_from" if self._config.pull_from else "held_share"
            raise ConfigError(
                f"kv_connector_extra_config.{name} is of prompts that others begin with, and this model has layers with windows or states, "
                "or blocks that can only be moved whole: leave it out"
            )

    # --- a request comes -------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Takes note of a request, before anything of it is computed or loaded. An exception here would end the engine."""
        if not isinstance(request.kv_transfer_params, dict):
            # vLLM takes whatever is not empty for one.
            request.kv_transfer_params = None
        params = self._params(request)
        if params.get("do_remote_decode"):
            # The last one is enough: what is computed behind the prompt is for the decode server.
            request.max_tokens = 1
            # Of all of the prompt, as the decode server has it: embeddings are told apart by a digest of all of them.
            lending = _Lending(request, Content.of(request), overlap=Overlap.read(params.get(OVERLAP)))
            if self._hold_back(request):
                self._lending[request.request_id] = lending
        elif params.get("do_remote_prefill"):
            ticket, seconds = self._read_ticket(request.request_id, params.get(PARAMETER))
            overlap = Overlap.read(params.get(OVERLAP))
            if overlap is not None and ticket is not None:
                # One of which nothing is loaded is prefilled whole, and given up.
                prefilled = self._prefilled(request.num_prompt_tokens) or request.num_prompt_tokens
                ticket = self._ticket_ahead(ticket, overlap.set, prefilled)
            if ticket is not None and self._is_own(ticket):
                # It was prefilled here: what is still cached is used, and the rest computed. The lease is not needed.
                self._step.give_up.append(ticket)
                params["do_remote_prefill"] = False
                return
            if ticket is not None and not self._takes(request.request_id, ticket):
                params["do_remote_prefill"] = False
                return
            # It is renewed in the next step, if it has no blocks by then: the prefill server knows that somebody comes.
            self._waiting[request.request_id] = _Waiting(ticket, seconds, -math.inf, overlap)

    def _is_own(self, ticket: Ticket) -> bool:
        """Returns whether this very server has made a ticket, since it started."""
        assert self._identity is not None
        try:
            said = ticket.open(self._identity)
        except TicketError:
            return False
        first = self._ranks[0]
        return (said["deployment"], said["incarnation"]) == (first.deployment, first.incarnation)

    def _takes(self, request_id: str, ticket: Ticket) -> bool:
        """Returns whether this request is to load with the ticket. Of several answers to one prompt the first one is, and the
        others are computed here."""
        if any(waiting.ticket == ticket for waiting in self._waiting.values()) or ticket in self._loading.values():
            return False
        # vLLM makes requests `0_ID`, `1_ID` and so on of them, and one may be over before the next one comes.
        number, _, siblings = request_id.partition("_")
        if number.isdecimal():
            if self._answering.get(siblings) == ticket:
                return False
            self._answering[siblings] = ticket
            if len(self._answering) > MOST_ANSWERING:
                del self._answering[next(iter(self._answering))]
        return True

    def _params(self, request: Request) -> dict[str, Any]:
        """Returns the parameters of a transfer from the client or the proxy, as far as this server takes part in it."""
        params = request.kv_transfer_params
        if not isinstance(params, dict):
            return {}
        config = self._transfer_config
        takes_part = {"do_remote_decode": config.is_kv_producer, "do_remote_prefill": config.is_kv_consumer}
        given = [flag for flag in takes_part if params.get(flag)]
        for flag in given:
            if params[flag] is not True:
                why = f"it is a {type(params[flag]).__name__}, and has to be true or false"
            elif len(given) > 1:
                why = "a request has one of the two"
            elif not takes_part[flag] or self._identity is None:
                why = "this server's kv_role or certs are missing"
            elif request.resumable:
                why = "it is not finished when it is prefilled"
            else:
                continue
            logger.warning("request %s has %s, which is ignored: %s", request.request_id, flag, why)
            params[flag] = False
        return params

    def _read_ticket(self, request_id: str, given: Any) -> tuple[Ticket | None, float]:
        """Returns the ticket that a request came with, and the seconds of its lease. An invalid ticket is dropped, since nothing is loaded
        with it."""
        seconds = self._config.lease_seconds
        if not isinstance(given, str):
            logger.error("request %s has no %s: it will not be loaded", request_id, PARAMETER)
            return None, seconds
        try:
            ticket = Ticket(given)
        except TicketError as error:
            logger.error("request %s has a %s that is none (%s): it will not be loaded", request_id, PARAMETER, error)
            return None, seconds
        try:
            seconds = ticket.open(self._identity)["time_left"]
        except TicketError:
            pass  # A forged one is refused when it is used.
        return ticket, seconds

    def matched_tokens(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens behind the `computed` ones are loaded, and that they come meanwhile. None: ask again."""
        params = self._params(request)
        if self.held is not None:
            self.held.wants(request.num_tokens)
        shares = self.saved is not None or self.peers is not None or self.held is not None
        is_ours = shares or request.request_id in self._lending or request.request_id in self._waiting
        if is_ours and self._adapters.may_still_come(request):
            return None, False
        if not params.get("do_remote_prefill"):
            if self.peers is not None and not request.resumable and not request.get_skip_reading_prefix_cache():
                # At least the last token is computed here.
                prefixes = partial(self._prefixes, request, max(1, self._held_back))
                loaded = self.peers.matched_tokens(request, prefixes, self._named(request), computed)
                if loaded is None or loaded:
                    return loaded, loaded is not None
            return self.saved.matched_tokens(request, computed) if self.saved is not None else (0, False)
        # Both sides compute from the prompt's length how much is prefilled. If they disagree, the pull is refused.
        tokens = self._prefilled(request.num_prompt_tokens) - computed
        waited = self._waiting.get(request.request_id)
        if waited is not None:
            waited.start, waited.unnamed = computed, ""
            try:
                waited.computed = self._names.of(request)
                if waited.is_void:
                    raise Unnamed("vLLM has cleared its caches since it came, or the weights are others")
            except Unnamed as unnamed:
                # It is computed here, and not a load that fails: that may end a request before its adapter was ever
                # loaded, and the next one alike.
                waited.unnamed = str(unnamed)
                return 0, False
            is_full = bool(self._early) and sum(self._early.values()) >= self._most_early
            if tokens > 0 and waited.overlap is not None and is_full:
                return None, False
        return (tokens, True) if tokens > 0 else (0, False)

    def allocated(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> None:
        """Tells workers what to load into the blocks that a request has got: `tokens` tokens of it."""
        params = self._params(request)
        lending = self._lending.get(request.request_id)
        if lending is not None:
            lending.computed = self._computed(request)
        if self.held is not None:
            self.held.allocated(request, self._named(request), tokens > 0)
        load = self.peers.allocated(request, blocks, tokens) if self.peers is not None else None
        if load is not None:
            self._loading[request.request_id], self._step.load[request.request_id] = load.ticket, load
            # The store takes note of what computes it.
            tokens = 0
        if not params.get("do_remote_prefill"):
            restore = self.saved.allocated(request, blocks, tokens) if self.saved is not None else None
            if restore is not None:
                self._leave_uncached(request, restore.start, restore.tokens)
                self._loading[request.request_id] = None
                self._step.restore[request.request_id] = restore
                if not self._config.is_exact:
                    self._inexact.add(request.request_id)
            return
        params["do_remote_prefill"] = False
        waited = self._waiting.pop(request.request_id, None)
        ticket = waited.ticket if waited else None
        if tokens == 0:
            # All of it is cached here, or it is computed here.
            if ticket is not None:
                self._step.give_up.append(ticket)
            if waited and waited.unnamed:
                self._step.unnamed[request.request_id] = ticket, waited.unnamed
            return
        valid = self._prefilled(request.num_prompt_tokens)
        start = waited.start if waited else 0
        if start + tokens != valid:
            # vLLM wants less than there is: what is recurrent is not what it was there.
            logger.error("request %s is to be loaded up to token %d of %d", request.request_id, start + tokens, valid)
            ticket = None
        self._leave_uncached(request, start, tokens)
        computed = waited.computed if waited else None
        self._loading[request.request_id] = ticket
        block_ids = blocks.get_block_ids()
        content = None if computed is None else Content.of(request).lent(computed)
        ahead = None
        if waited is not None and waited.overlap is not None and ticket is not None and content is not None:
            ahead = self._pieces(ticket, waited.overlap, content, start, valid)
            self._early[request.request_id] = len(_all_of(block_ids))
        pushed = ticket is not None and ahead is None and self._config.mode == "push"
        self._step.load[request.request_id] = Load(
            ticket=ticket,
            into=self._ticket_into(start, valid) if pushed else None,
            blocks=block_ids,
            content=b"" if content is None else content.digest(valid),
            start=start,
            tokens=tokens,
            ahead=ahead,
        )

    def _pieces(self, ticket: Ticket, overlap: Overlap, content: Prompt, start: int, valid: int) -> list[Part]:
        """Returns the pieces of a prompt that are not cached here, each with a ticket of its own."""
        pieces: list[Part] = []
        for end in piece_ends(valid) if self._is_divided else ():
            if end > start:
                pieces.append(Part(self._ticket_ahead(ticket, overlap.set, end), content.digest(end), start, end))
                start = end
        return pieces

    def _leave_uncached(self, request: Request, start: int, tokens: int) -> None:
        if self._caches_windows:
            assert self._uncached is not None, "vLLM has not said what manages its blocks"
            self._uncached.load(request.request_id, start, start + tokens)

    # --- each step -------------------------------------------------------------------

    def build_step(self, scheduled: SchedulerOutput) -> Step:
        """Returns the work of the workers in this step."""
        self._adapters.step()
        if scheduled.num_scheduled_tokens or self._step.load or self._step.restore:
            self._weights.computes()
        for request_id in scheduled.preempted_req_ids or ():
            # vLLM may have preempted it before this step, which loads it again.
            if request_id not in self._step.restore:
                self._inexact.discard(request_id)
            lending = self._lending.get(request_id)
            if lending is not None:
                # Its blocks are somebody else's by now. It is lent again when it has others.
                self._take_back(request_id, lending)
        for request_id, tokens in scheduled.num_scheduled_tokens.items():
            lending = self._lending.get(request_id)
            if lending is not None and lending.lent is None:
                self._lend(request_id, lending, tokens)
        now = time.monotonic()
        for waiting in self._waiting.values():
            if waiting.ticket is not None and now - waiting.renewed >= waiting.lease_seconds / 3:
                waiting.renewed = now
                self._step.renew[waiting.ticket] = waiting.lease_seconds
        if self.saved is not None:
            self.saved.build_step(self._step)
        if self.peers is not None:
            self._step.give_up.extend(self.peers.given_up)
            self.peers.given_up.clear()
        if self.held is not None:
            self.held.build_step(self._step, self._free_blocks(), scheduled.num_scheduled_tokens)
        self._step.computes = bool(scheduled.num_scheduled_tokens)
        step, self._step = self._step, Step()
        return step

    @property
    def may_rest(self) -> bool:
        """Returns whether the engine may rest while blocks are lent: the workers need no message, and nothing is being saved."""
        if self.held is not None and self.held.is_asked:
            return False
        return self._step == Step() and not (self.saved is not None and self.saved.is_saving)

    def hold(self, is_open: bool) -> None:
        """Takes note of whether vLLM goes on, and is neither paused nor about to end."""
        if self.held is not None:
            self.held.hold(is_open, self._step)

    def wakes(self, engine: threading.Condition) -> None:
        """Takes note of what an engine that rests waits for."""
        if self.held is not None:
            self.held.rests_at = engine

    def _lend(self, request_id: str, lending: _Lending, scheduled: int) -> None:
        request = lending.request
        tokens, computed = request.num_prompt_tokens, request.num_computed_tokens + scheduled
        is_prefilled = computed >= tokens
        pieces = piece_ends(tokens)[lending.ahead :] if lending.overlap is not None and self._is_divided else []
        # Drafts look at tokens behind theirs.
        pieces = [end for end in pieces if is_prefilled or end + self._held_back <= computed]
        if not (is_prefilled or pieces) or lending.computed is None or self._computed(request) != lending.computed:
            return
        if request_id in self._inexact:
            # Its name is that of exact blocks.
            self._tell(request, f"what of it is in the store is there with codec {self._config.codec}, and not exact")
            return
        content, blocks = lending.content.lent(lending.computed), self._blocks(request_id)
        adapter = None if request.lora_request is None else (request.lora_request.lora_int_id, lending.computed.adapter)
        lending.ahead += len(pieces)
        for end in pieces:
            lend = Lend(lending.overlap.set(end), blocks, content.digest(end), end, adapter)
            self._step.lend_ahead.setdefault(request_id, []).append(lend)
        if is_prefilled:
            is_named = lending.overlap is not None and not lending.is_lent_again
            lease_set = lending.overlap.set(tokens) if is_named else os.urandom(16)
            lending.lent = self._step.lend[request_id] = Lend(lease_set, blocks, content.digest(tokens), tokens, adapter)

    def _take_back(self, request_id: str, lending: _Lending) -> None:
        """Ends the leases of a request, if it has any, since its blocks will be used by another one."""
        if lending.lent is not None or lending.ahead:
            lending.is_lent_again |= lending.lent is not None
            lending.lent = None
            self._step.take_back.append(request_id)

    def _computed(self, request: Request) -> Computed | None:
        """Names what computes a request that is prefilled here. None if that has no name, which is logged once for each reason."""
        try:
            return self._names.of(request)
        except Unnamed as unnamed:
            self._tell(request, str(unnamed))
            return None

    def _tell(self, request: Request, why: str) -> None:
        """Logs why a request gets no ticket, once for each reason."""
        if why not in self._told:
            logger.warning("request %s gets no ticket, nor do others like it: %s", request.request_id, why)
            self._told = {why, *list(self._told)[:MOST_TOLD]}

    def hear(self, output: KVConnectorOutput) -> None:
        """Takes note of loads and saves that have ended on every rank, and of adapters that are loaded."""
        report = output.kv_connector_worker_meta
        if not isinstance(report, Report):
            report = Report()
        if report.adapters:
            self._adapters.hear(report.adapters)
        for request_id in output.finished_recving or ():
            self._loading.pop(request_id, None)
            self._early.pop(request_id, None)
        for request_id in report.claimed | (output.finished_sending or set()):
            self._unclaimed.pop(request_id, None)
        if self.held is not None:
            self.held.hear(output.finished_sending or set())
        if self.saved is not None:
            self.saved.hear(output)

    def take_stats(self) -> Stats:
        """Returns the figures since the last time."""
        stats = Stats() if self.saved is None else self.saved.take_stats()
        return stats if self.peers is None else stats.aggregate(self.peers.stats.take())

    # --- a request ends --------------------------------------------------------------

    def finished(self, request: Request, blocks: Blocks) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether the blocks of a finished request stay, and what goes out with the answer."""
        self._adapters.forget(request.request_id)
        is_exact = request.request_id not in self._inexact
        self._inexact.discard(request.request_id)
        if self.peers is not None:
            self.peers.finished(request.request_id)
        is_loading = request.request_id in self._loading
        if is_loading:
            # vLLM keeps the blocks until the workers report the end of it.
            self._step.stop_loading.append(request.request_id)
        stay, params = self._lent(request, blocks)
        if self.saved is not None and self.saved.finished(request, () if is_loading else blocks, self._step):
            stay = True
        if self.held is not None:
            there, by = blocks if is_exact and not is_loading else (), self._named(request)
            prefixes, is_still = partial(self._prefixes, request, self._held_back), partial(self._names.is_still, request.lora_request, by)
            stay |= self.held.finished(request, there, by, prefixes, is_still, self._step)
        return stay, params

    def _lent(self, request: Request, blocks: Blocks) -> tuple[bool, dict[str, Any] | None]:
        request_id = request.request_id
        lending = self._lending.pop(request_id, None)
        if lending is not None:
            return self._hand_over(request, lending, blocks)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and waiting.ticket is not None:
            # Aborted before it had blocks.
            self._step.give_up.append(waiting.ticket)
        return False, None

    def _hand_over(self, request: Request, lending: _Lending, blocks: Blocks) -> tuple[bool, dict[str, Any] | None]:
        prefilled = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        if lending.lent is None:
            self._take_back(request.request_id, lending)
            return False, None
        # One that was preempted and yet ends, by an output that was under way, has no blocks.
        is_there = any(blocks) and _still_there(lending.lent.blocks, blocks)
        is_another = not is_there or self._computed(request) != lending.computed
        if is_another:
            logger.error("request %s is not what was lent any more: nothing is handed over", request.request_id)
        if is_another or request.status not in prefilled:
            self._take_back(request.request_id, lending)
            return False, None
        ticket = self._ticket(lending.lent.set, lending.lent.tokens, time_left=self._config.lease_seconds)
        self._step.handed_over[request.request_id] = ticket
        self._unclaimed[request.request_id] = _all_of(blocks)
        self._reclaim()
        params = {"do_remote_prefill": True, "do_remote_decode": False, PARAMETER: ticket.text}
        if lending.overlap is not None and not lending.is_lent_again:
            # A decode server may be loading it already. It is, if it has asked this life of this engine.
            params[LIFE] = f"{self._ranks[0].incarnation:032x}"
        return True, params

    def _reclaim(self) -> None:
        """Takes blocks back while those that no decode server has asked for exceed their share. Otherwise anyone who may use this server
        for prefills could fill its cache."""
        while len(self._unclaimed) > 1 and len(set().union(*self._unclaimed.values())) > self._most_unclaimed:
            oldest = next(iter(self._unclaimed))
            del self._unclaimed[oldest]
            self._step.reclaim.append(oldest)

    def _ticket_held(self, lease_set: bytes, tokens: int) -> Ticket:
        """Makes a ticket for what is held. It is for any thread."""
        return self._ticket(lease_set, tokens, time_left=self._config.lease_seconds)

    def _ticket_into(self, start: int, valid: int) -> Ticket:
        """Makes a ticket for a prefill server to push with. The workers open their blocks under it."""
        return self._ticket(os.urandom(16), valid, push=True, start=start, time_left=self._config.timeout_seconds)

    def _ticket_ahead(self, earlier: Ticket, lease_set: Callable[[int], bytes], end: int) -> Ticket | None:
        """Makes a ticket for a lease that the server of an earlier one will open. None if that is of another cluster."""
        try:
            known = earlier.open(self._identity)
        except TicketError as error:
            logger.error("%r is not of a server of this cluster: %s", earlier, error)
            return None
        named = {name: known[name] for name in ("deployment", "incarnation", "time_left")}
        return Ticket.mint(self._identity, lease_set(end), known["ranks"], valid_tokens=end, **named)

    def _ticket(self, lease_set: bytes, tokens: int, **claims: Any) -> Ticket:
        assert self._identity is not None
        first = self._ranks[0]
        return Ticket.mint(
            self._identity,
            lease_set,
            [(rank.agent, rank.host, rank.port) for rank in self._ranks],
            deployment=first.deployment,
            incarnation=first.incarnation,
            valid_tokens=tokens,
            **claims,
        )

    # --- what was computed is void ---------------------------------------------------

    def reset_cache(self) -> bool:
        """Voids what was computed before, because vLLM clears its caches. Returns False if some blocks are still held, or if the weights
        have no name from now on."""
        # vLLM does not clear the caches of its own while somebody has blocks. One is the null block.
        assert self._manager is not None
        try:
            pool = self._manager.block_pool
            is_whole = pool.num_gpu_blocks - pool.get_num_free_blocks() == 1
        except AttributeError as error:
            logger.warning("whether vLLM's own caches are cleared is not known with this version: %s", error)
            is_whole = False
        # To fall asleep vLLM clears its caches, and fails where that fails.
        is_named = self._weights.clear(is_whole=is_whole, keeps_weights=self._config.reset_keeps_weights or self._falls_asleep)
        if is_whole:
            self._adapters.clear()
        self._forget()
        return is_whole and (is_named or self._falls_asleep)

    def fall_asleep(self, *, keeps_weights: bool) -> None:
        """Takes note that vLLM clears its caches next to take their memory away, and with it that of weights, or a copy of them."""
        if not keeps_weights:
            self.change_weights()
        self._falls_asleep = True

    def end_falling_asleep(self) -> None:
        """Takes note that vLLM sleeps, or has failed to: when it clears its caches from here on, weights may have changed."""
        self._falls_asleep = False

    def change_weights(self) -> None:
        """Voids what was computed before, because vLLM changes the weights in place."""
        self._weights.change()
        self._forget()

    def name_weights(self, version: str) -> None:
        """Gives the weights the name that the operator says."""
        epoch = self._weights.epoch
        self._weights.call(version)
        if self._weights.epoch != epoch:
            self._forget()

    def add_adapter(self, adapter: LoRARequest) -> None:
        """Takes note of an adapter that vLLM has loaded, if it replaces one."""
        if adapter.load_inplace:
            self._adapters.replace(adapter.lora_int_id)

    def _forget(self) -> None:
        """Takes back all lent blocks, and loads nothing more that was computed before."""
        self._told.clear()
        for request_id, lending in self._lending.items():
            lending.computed = None
            self._take_back(request_id, lending)
        # Workers get this before they lend anything that is computed from now on.
        self._step.take_back_all = True
        for waiting in self._waiting.values():
            waiting.is_void = True
        self._step.stop_loading.extend(self._loading)
        if self.peers is not None:
            self.peers.forget()
        if self.held is not None:
            self.held.forget(self._step)
        if self.saved is not None:
            self.saved.forget(self._step)

    def shutdown(self) -> None:
        for announcement in self._announcements:
            announcement.end()
        self._weights.shutdown()
        for part in (self.peers, self.held):
            if part is not None:
                part.shutdown()
        if self.saved is not None:
            self.saved.shutdown()

    # --- what servers share without a ticket -------------------------------------------

    def _named(self, request: Request) -> Computed | None:
        """Names what computes a request; None if that has no name."""
        try:
            return self._names.of(request)
        except Unnamed:
            return None

    def _prefixes(self, request: Request, without: int) -> dict[int, bytes]:
        """Returns the digests of what of a request's prompt servers share, without its last tokens."""
        return Content.of(request).prefixes(self._names.of(request), request.num_prompt_tokens - without)

    def _free_blocks(self) -> int:
        """Returns how many blocks vLLM has left: 0 where this version does not tell, so that nothing is held for long."""
        pool = getattr(self._manager, "block_pool", None)
        return 0 if pool is None else pool.get_num_free_blocks()

    # --- how far a prefill goes ------------------------------------------------------

    def _prefilled(self, prompt_tokens: int) -> int:
        """Returns how many tokens of a prompt are loaded. If it is too short, none are: the prefill server computes all of it then."""
        return max(0, prompt_tokens - self._held_back) // self._whole * self._whole

    def _hold_back(self, request: Request) -> bool:
        """Takes the last tokens off a prompt: the decode server computes them itself. False where that cannot be done."""
        prefilled = self._prefilled(request.num_prompt_tokens)
        count = request.num_prompt_tokens - prefilled if prefilled else 0
        # Prompt logprobs are of all of the prompt; nothing is loaded for them elsewhere.
        if not count or request.get_skip_reading_prefix_cache():
            return True
        if not isinstance(getattr(request, "_all_token_ids", None), list):
            self._tell(request, "this vLLM keeps its tokens elsewhere, so that a prompt cannot be prefilled but for its last ones")
            return False
        if any(each.mm_position.offset + each.mm_position.length > prefilled + self._held_back for each in request.mm_features):
            # Models may look for the tokens that enclose an image or the like, and fail where there are none.
            self._tell(request, "a block that can only be moved whole has the end of an image or the like")
            return False
        if request.prompt_token_ids is not None:
            del request.prompt_token_ids[-count:]
        if request.prompt_embeds is not None:
            request.prompt_embeds = request.prompt_embeds[:-count]
        if getattr(request, "prompt_is_token_ids", None) is not None:
            request.prompt_is_token_ids = request.prompt_is_token_ids[:-count]
        del request._all_token_ids[-count:]
        request.num_prompt_tokens -= count
        return True

    def _blocks(self, request_id: str) -> Blocks:
        assert self._manager is not None
        return tuple(list(group) for group in self._manager.get_block_ids(request_id))


def _all_of(blocks: Blocks) -> set[int]:
    return {block for group in blocks for block in group} - {NULL_BLOCK}


def _still_there(lent: Blocks, now: Blocks) -> bool:
    """Returns whether the blocks that were lent are those of the request, but for those that left its window."""
    return all(
        bool(after) >= bool(before) and all(new in (old, NULL_BLOCK) for old, new in zip(before, after))
        for before, after in zip(lent, now, strict=True)
    )


def _held_back(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Returns how many tokens at the end of a prompt the decode server computes itself.

    Recurrent state cannot go back: the decode server needs the one before the last token, whose logits it wants.
    Neither can a window: for the last token it has to begin one token earlier than behind it. Nor can a ring, whose last tokens are
    of no use any more when there are enough of them for a state.
    Drafts that look several tokens ahead would leave caches of tokens that nobody has accepted.
    """
    last = int(has_windows(kv_cache_config) or has_rings(kv_cache_config) or kv_cache_config.has_mamba_layers)
    return max(last, vllm_config.num_prefill_lookahead_tokens - 1)

