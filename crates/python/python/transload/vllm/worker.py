"""Leases and loads one rank's blocks: the half of the connector in each of vLLM's workers.

Nothing here waits for a peer: transfers go on in the agent's own threads, and each step looks what has ended. An agent
that has stopped ends no engine: its leases and loads have failed, nothing touches their blocks, and vLLM goes on alone.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable

from transload import (
    Agent,
    AgentError,
    Completion,
    CudaError,
    Lease,
    LeaseError,
    Mark,
    Ticket,
    TicketError,
    Transfer,
    TransferError,
    TransloadError,
    default_instance,
    new_incarnation,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger

from . import adapters, cache
from .messages import Lend, Load, Part, RankAddress, Report, Step
from .misfits import Misfits
from .overlap import Overlapped
from .saved_worker import SavedWorker
from .stats import Stats

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from .config import Config

logger = init_logger("vllm." + __name__)

IDLE_SECONDS = 0.005
"""How long a step that computes nothing waits for a load, a lease or a save. vLLM steps without a pause while there is one, and the load
would lack the processor that these steps use. A new request waits at most this much longer. Engines that share experts compute steps
together, so these do not wait."""

TAKE_BACK_SECONDS = 1.0
"""How long a step waits at most for a copy out of blocks that are taken back. Its bytes are void in any case."""

_KINDS = {TicketError: "ticket", AgentError: "other", CudaError: "other"}
"""The kinds, for counters, of failures that are no TransferError. That says its kind itself."""


@dataclass
class _HandedOver:
    ticket: Ticket
    claimed: bool = False
    """Whether the scheduler knows that a decode server has asked for it."""
    reclaimed: bool = False


@dataclass
class _Loading:
    ticket: Ticket | None
    transfer: Transfer | Overlapped | None = None
    """None if it failed at once."""
    begun: float = field(default_factory=time.monotonic)


class Worker:
    """Lends and loads the blocks of one rank."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._config = config
        tp, pp = get_tp_group(), get_pp_group()
        self._rank, self._ranks = pp.rank_in_group * tp.world_size + tp.rank_in_group, pp.world_size * tp.world_size
        self._identity = config.identity(self._rank)
        self._kv_caches: dict[str, torch.Tensor] = {}
        self._is_asleep = False
        self._cache: cache.Cache | None = None
        self._agent: Agent | None = None
        self._leases: dict[str, Lease | None] = {}
        self._ahead: dict[str, list[Lease]] = {}
        """The leases of pieces, which end with that of the whole prompt."""
        self._stages, self._idle = pp.world_size, 0
        self._unended: Step | None = None
        """The last step, as long as vLLM has not said that it is submitted."""
        self._unfinished: list[tuple[str, Lease]] = []
        """Leases whose blocks the last step may have been given more work on after `wait_for_save`; they are finished with
        the mark of the next step."""
        self._handed_over: dict[str, _HandedOver] = {}
        self._held: dict[str, list[Lease]] = {}
        """What others have asked for, of each request that is held for them."""
        self._released: set[str] = set()
        self._loads: dict[str, _Loading] = {}
        self._stopped: set[str] = set()
        """Requests whose load is not wanted any more, also where it has ended well."""
        self._told: adapters.Loaded = {}
        self._notices: list[tuple[str, Completion]] = []
        self._any_address = "[::]" if ":" in config.host else "0.0.0.0"
        self._misfits = Misfits(self._identity, f"{self._any_address}:0")
        self._stats = Stats()
        self._counted: dict[str, Any] = {}
        self._told_of_drafts: set[str] = set()
        self._incarnation = 0
        self._agent_has_stopped = False
        self.saved: SavedWorker | None = None
        if config.store is not None:
            self.saved = SavedWorker(vllm_config, config, self._rank)
        if vllm_config.lora_config is not None:
            adapters.watch()

    # --- start and end ---------------------------------------------------------------

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Reads the cache that vLLM has allocated, and starts the agent, if there is one."""
        self._kv_caches, self._is_asleep = kv_caches, False
        self._cache = cache.read(self._vllm_config, self._kv_cache_config, kv_caches, self._config.agent)
        groups = ", ".join(repr(group) for group in self._cache.deployment.groups)
        logger.info("the cache is described as %s", groups)
        if self.saved is not None:
            self.saved.register(self._cache)
        # All ranks are of one life, which begins later than any before it, and of one name, which stays the same.
        server = self._config.instance or default_instance(self._config.port)
        own = (new_incarnation(), server) if self._rank == 0 else None
        self._incarnation, server = get_pp_group().broadcast_object(get_tp_group().broadcast_object(own, src=0), src=0)
        if self._identity is None:
            return
        self._agent = Agent(
            self._identity,
            self._cache.deployment,
            {self._rank: self._cache.memories},
            bind=f"{self._any_address}:{self._config.port + self._rank}",
            incarnation=self._incarnation,
            instance=server if self._ranks == 1 else f"{server}-{self._rank}",
            lanes=self._config.lanes,
            lane_ports=self._config.lane_ports,
            stall_seconds=self._config.stall_seconds,
            connect_seconds=self._config.connect_seconds,
            codecs=[] if self._config.wire_codec == "exact" else [self._config.wire_codec],
        )
        logger.info("agent %s is on UDP port %d", self._agent.name, self._agent.port)

    def unregister(self) -> None:
        """Ends the agent: vLLM takes the memory of the cache away, once nothing is lent, loaded or saved any more."""
        if self._agent is not None:
            self._agent.shutdown(1.0)
            port, self._agent, self._counted, self._agent_has_stopped = self._agent.port, None, {}, False
            self._wait_until_free(port)
        self._is_asleep = True

    def _wait_until_free(self, port: int) -> None:
        """Waits for a port of an agent that has ended: its threads may have the socket for a moment longer."""
        family = socket.AF_INET6 if ":" in self._any_address else socket.AF_INET
        for _ in range(100):
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as other:
                    other.bind((self._any_address.strip("[]"), port))
                return
            except OSError:
                time.sleep(0.05)

    def restore(self) -> None:
        """Starts an agent of another life, which no earlier ticket is for, with what the cache is in now."""
        if self._is_asleep:
            self.register(self._kv_caches)

    def address(self) -> RankAddress | None:
        """Returns this rank's entry in tickets."""
        if self._cache is None:
            return None
        return RankAddress(
            agent="" if self._agent is None else self._agent.name,
            host=self._config.host,
            port=0 if self._agent is None else self._agent.port,
            deployment=self._cache.deployment.digest,
            document=self._cache.deployment.document,
            incarnation=self._incarnation,
        )

    def shutdown(self) -> None:
        if self.saved is not None:
            self.saved.shutdown()
        if self._agent is not None:
            self._agent.shutdown(1.0)
        self._misfits.shutdown()

    # --- each step -------------------------------------------------------------------

    def begin_step(self, step: Step) -> None:
        """Does what does not depend on the step, before anything is computed."""
        assert self._cache is not None
        if self._unended is not None:
            # With drafts vLLM tells only the last pipeline stage. By now all of that step is submitted on each.
            self.end_step(self._unended)
        self._unended = step
        for request_id in step.take_back:
            self._take_back(request_id)
        for request_id, ticket in step.handed_over.items():
            self._hand_over(request_id, ticket)
        for request_id in step.reclaim:
            self._reclaim(request_id)
        for lease in (*self._leases.values(), *chain(*self._ahead.values(), *self._held.values())) if step.take_back_all else ():
            if lease is not None:
                self._tell(lease.cancel)
        # First all that are filled, so that one mark is behind it all. Without a ticket nothing comes into them.
        with_tickets = (load for load in step.load.values() if load.ticket is not None)
        for filled in (*with_tickets, *step.restore.values()):
            self._cache.clear(filled.blocks, filled.start, filled.tokens)
        mark = self._cache.mark_once()
        self._finish(mark)
        self._lend_held(step, mark)
        for request_id, load in step.load.items():
            self._load(request_id, load, mark)
        for request_id, (ticket, why) in step.unnamed.items():
            self._stats.failed("unnamed")
            logger.warning("request %s is computed here, and was not loaded with %r (unnamed): %s", request_id, ticket, why)
        for request_id in step.stop_loading:
            loading = self._loads.get(request_id)
            if loading is not None and loading.transfer is not None:
                self._tell(loading.transfer.cancel)
        if self.saved is not None:
            self.saved.begin_step(step, mark)
        self._stopped.update(filter(self._is_loading, step.stop_loading))
        if self._rank == 0:
            self._notify(step)

    def _is_loading(self, request_id: str) -> bool:
        return request_id in self._loads or self.saved is not None and self.saved.is_loading(request_id)

    def end_step(self, step: Step) -> None:
        """Leases what the step has prefilled. It is computed, or on a GPU submitted, and can be read when that is done."""
        assert self._cache is not None
        self._unended = None
        mark = self._cache.mark_once()
        for request_id, pieces in step.lend_ahead.items():
            leases = (self._lend(request_id, lend, mark) for lend in pieces)
            self._ahead.setdefault(request_id, []).extend(filter(None, leases))
        for request_id, lend in step.lend.items():
            self._leases[request_id] = self._lend(request_id, lend, mark)

    def results(self, step: Step) -> KVConnectorTransferResults:
        """Returns the leases and loads that have ended since the last step."""
        self._idle = 0 if step.computes else self._idle + 1
        # Between the steps of one request on several pipeline stages are steps that compute nothing. Dense engines of one server do not
        # know of each other.
        if self._idle >= self._stages and self._vllm_config.parallel_config.data_parallel_size == 1:
            self._wait_a_moment()
        results, sent = KVConnectorTransferResults(), set()
        for request_id, handed_over in list(self._handed_over.items()):
            lease = self._leases[request_id]
            if (lease is None or lease.ended.done()) and self._ahead_ended(request_id):
                del self._handed_over[request_id]
                del self._leases[request_id]
                sent.add(request_id)
                self._lease_ended(request_id, handed_over, lease)
        for request_id in [each for each in self._released if all(lease.ended.done() for lease in self._held[each])]:
            self._released.remove(request_id)
            for lease in self._held.pop(request_id):
                self._stats.lease_ended(_end_of(lease))
            sent.add(request_id)
        for request_id, loading in list(self._loads.items()):
            if loading.transfer is None or loading.transfer.ended.done():
                del self._loads[request_id]
                results.finished_recving.add(request_id)
                if not self._loaded(request_id, loading):
                    results.failed_recving.add(request_id)
        if self.saved is not None:
            # Blocks may be lent, held and saved at once; vLLM hears when all of that is over.
            sent = {each for each in sent | self.saved.collect(results) if not self.saved.keeps(each)}
        results.finished_sending |= sent - self._handed_over.keys() - self._held.keys()
        results.failed_recving |= results.finished_recving & self._stopped
        self._stopped -= results.finished_recving
        self._hear_notices()
        return results

    def report(self) -> Report | None:
        """Returns the report for the scheduler after a step; None if there is nothing to report."""
        report = Report({} if self.saved is None else self.saved.take_parts())
        loaded = adapters.loaded(self._vllm_config.lora_config)
        if loaded != self._told:
            self._told = report.adapters[self._rank] = loaded
        for request_id, handed_over in self._handed_over.items():
            lease = self._leases[request_id]
            if not handed_over.claimed and lease is not None and self._is_claimed(request_id, lease):
                handed_over.claimed = True
                report.claimed.add(request_id)
        return report if report.parts or report.adapters or report.claimed else None

    def take_stats(self) -> Stats | None:
        """Returns the figures since the last time."""
        if self.saved is not None:
            self._stats.aggregate(self.saved.take_stats())
        if self._stats.is_empty():
            return None
        counted = None if self._agent is None else self._tell(self._agent.metrics)
        if counted is not None:
            self._stats.worked(self._counted, counted)
            self._counted = counted
        return self._stats.take()

    def _tell(self, say: Callable[[], Any]) -> Any:
        """Calls the agent. None where it has stopped, which is logged once."""
        try:
            return say()
        except AgentError as error:
            if not self._agent_has_stopped:
                self._agent_has_stopped = True
                logger.error("no blocks are lent or loaded any more (%s): restart the server", error)
            return None

    def _wait_a_moment(self) -> None:
        """Waits shortly for the oldest load, or else for the oldest lease, or for the store."""
        loads = (loading.transfer for loading in self._loads.values())
        leases = (self._leases[request_id] for request_id in self._handed_over)
        oldest = next((each for each in chain(loads, leases) if each is not None), None)
        if oldest is not None:
            oldest.ended.wait(IDLE_SECONDS)
        elif self._held:
            time.sleep(IDLE_SECONDS)
        elif self.saved is not None:
            self.saved.wait(IDLE_SECONDS)

    # --- lending ---------------------------------------------------------------------

    def _lend(self, request_id: str, lend: Lend, mark: cache.MarkOnce) -> Lease | None:
        """Leases blocks. Returns None if that is not possible; a peer that asks for them then gets the refusal of an unknown lease."""
        assert self._agent is not None and self._cache is not None
        if lend.adapter is not None and not self._has_computed_with(*lend.adapter):
            logger.error("blocks of request %s are not lent: its adapter was loaded anew, and is another one", request_id)
            return None
        is_finished = not self._cache.writes_after_step
        try:
            lease = self._agent.lease(
                lend.set,
                self._rank,
                self._cache.tables(lend.blocks, lend.tokens),
                lend.content,
                lend.tokens,
                ttl=self._config.lease_seconds,
                hard_bound=self._config.lease_seconds + self._config.timeout_seconds,
                prefilled=is_finished,
                after=mark() if is_finished else None,
            )
        except (LeaseError, AgentError, CudaError) as error:
            logger.error("blocks of request %s cannot be lent: %s", request_id, error)
            return None
        if not is_finished:
            self._unfinished.append((request_id, lease))
        return lease

    def _lend_held(self, step: Step, mark: cache.MarkOnce) -> None:
        """Lends what was computed in earlier steps, and is held since, to those who have asked; and releases what is held no more."""
        for request_id in step.hold:
            self._held[request_id] = []
        for request_id, lend in step.lend_held:
            leases = self._held[request_id]
            for lease in [each for each in leases if each.ended.done()]:
                leases.remove(lease)
                self._stats.lease_ended(_end_of(lease))
            leases.extend(filter(None, [self._lend(request_id, lend, mark)]))
        for request_id in step.release:
            self._released.add(request_id)
            for lease in self._held[request_id]:
                # A server that reads from it already may finish.
                if not lease.is_claimed:
                    self._tell(lease.cancel)

    def _finish(self, mark: cache.MarkOnce) -> None:
        """Finishes the leases of the last step, since all its work has been submitted now, however vLLM has ended it."""
        for request_id, lease in self._unfinished:
            try:
                lease.finish_prefill(after=mark())
            except LeaseError:
                pass  # It has ended, as one does that is taken back.
            except (AgentError, CudaError) as error:
                logger.error("blocks of request %s are lent no more: %s", request_id, error)
                self._tell(lease.cancel)
        self._unfinished.clear()

    def _has_computed_with(self, number: int, digest: str) -> bool:
        """Returns whether an adapter is still the one that the scheduler knew when the step was planned. vLLM may have evicted it since,
        and loaded it again for the step, from a file that has changed."""
        loaded = adapters.loaded(self._vllm_config.lora_config).get(number)
        return loaded is not None and loaded[2].hex() == digest

    def _hand_over(self, request_id: str, ticket: Ticket) -> None:
        self._handed_over[request_id] = _HandedOver(ticket)
        lease = self._leases.setdefault(request_id, None)
        if lease is not None:
            try:
                lease.renew(self._config.lease_seconds)
            except (LeaseError, AgentError) as error:
                why = str(error)

                def tell(_) -> None:
                    # One that is read already, or given up, by a decode server that is ahead of this step is as it should be.
                    if _end_of(lease) not in ("completed", "cancelled"):
                        logger.warning("the lease of request %s ended before its ticket went out: %s", request_id, why)

                # The agent may know of the end already, and tell it in a moment.
                lease.ended.add_done_callback(tell)

    def _reclaim(self, request_id: str) -> None:
        lease, handed_over = self._leases.get(request_id), self._handed_over.get(request_id)
        # A decode server may have asked for it since the scheduler looked, or have read it.
        if lease is not None and handed_over is not None and not self._is_claimed(request_id, lease):
            handed_over.reclaimed = True
            self._tell(lease.cancel)

    def _is_claimed(self, request_id: str, lease: Lease) -> bool:
        """Returns whether a decode server has asked for a request, or for a piece of it."""
        return any(each.is_claimed for each in (lease, *self._ahead.get(request_id, ())))

    def _lease_ended(self, request_id: str, handed_over: _HandedOver, lease: Lease | None) -> None:
        end = _end_of(lease)
        if end == "cancelled" and handed_over.reclaimed:
            end = "reclaimed"
        self._stats.lease_ended(end)
        if end != "completed":
            # A client of the decode server that goes away is nothing to worry about.
            level = logging.INFO if end == "cancelled" else logging.WARNING
            logger.log(level, "request %s was prefilled, and not fetched with %r (%s)", request_id, handed_over.ticket, end)

    def _take_back(self, request_id: str) -> None:
        for lease in (self._leases.pop(request_id, None), *self._ahead.pop(request_id, ())):
            if lease is not None:
                self._tell(lease.cancel)
                # Somebody may be reading a piece. It does not count any more, and here nothing is waited for but copies.
                lease.ended.wait(TAKE_BACK_SECONDS)

    def _ahead_ended(self, request_id: str) -> bool:
        """Ends the leases of pieces, which the lease of the whole prompt has replaced. Returns whether they have ended."""
        ahead = self._ahead.get(request_id, ())
        for lease in ahead:
            self._tell(lease.cancel)
        if not all(lease.ended.done() for lease in ahead):
            return False
        self._ahead.pop(request_id, None)
        return True

    # --- loading ---------------------------------------------------------------------

    def _load(self, request_id: str, load: Load, mark: cache.MarkOnce) -> None:
        assert self._agent is not None and self._cache is not None
        loading = self._loads[request_id] = _Loading(load.ticket)
        try:
            if load.ticket is None:
                raise TicketError("it came without a ticket that can be read")
            if (misfit := self._misfits.error(load.ticket)) is not None:
                self._failed(request_id, loading, misfit)
                return
            part = Part(load.ticket, load.content, load.start, load.start + load.tokens)
            if load.ahead is None:
                loading.transfer = self._pull(load, part, self._config.timeout_seconds, mark(), into=load.into)
            else:
                pull = functools.partial(self._pull, load, mark=mark(), keep_leases=True)
                loading.transfer = Overlapped(load.ahead, part, self._config.timeout_seconds, pull)
        except (TicketError, TransferError, AgentError, CudaError) as error:
            self._failed(request_id, loading, error)

    def _pull(self, load: Load, part: Part, seconds: float, mark: Mark | None, **how: Any) -> Transfer:
        assert self._agent is not None and self._cache is not None
        return self._agent.pull(
            part.ticket,
            [self._rank],
            self._cache.tables(load.blocks, part.end),
            part.content,
            part.end - part.start,
            start=part.start,
            paths=self._config.require,
            timeout=seconds,
            after=mark,
            codec=self._config.wire_codec,
            **how,
        )

    def _loaded(self, request_id: str, loading: _Loading) -> bool:
        if loading.transfer is None:
            return False
        try:
            report = loading.transfer.ended.result(0)
        except (TransferError, AgentError) as error:
            self._failed(request_id, loading, error)
            return False
        self._stats.loaded(report, time.monotonic() - loading.begun)
        for what, groups in ("zeroed", report["skipped_here"]), ("skipped", report["skipped_there"]):
            if groups:
                self._stats.skipped_drafts(what)
                self._tell_of_drafts(what, groups)
        return True

    def _tell_of_drafts(self, what: str, groups: list[str]) -> None:
        if what in self._told_of_drafts or self._rank:
            return
        self._told_of_drafts.add(what)
        if what == "zeroed":
            logger.warning(
                "prefill servers have no drafts (%s): answers stay what they are, but fewer drafts are accepted for what was loaded; start them "
                "with this server's --speculative-config",
                ", ".join(groups),
            )
        else:
            logger.warning("prefill servers compute drafts (%s) that this server has no use for", ", ".join(groups))

    def _failed(self, request_id: str, loading: _Loading, error: TransloadError) -> None:
        kind = error.kind if isinstance(error, TransferError) else _KINDS[type(error)]
        self._stats.failed(kind)
        level, more = logging.DEBUG if request_id in self._stopped else logging.ERROR, ""
        is_misfit = loading.ticket is not None and isinstance(error, TransferError) and error.is_misfit
        if is_misfit:
            level = logging.DEBUG
            if self._misfits.meet(loading.ticket, error):
                level, more = logging.WARNING, "; nor will others be from there, until either server is started otherwise"
        # A pull that may be repeated keeps its leases.
        if is_misfit and self._rank == 0 or isinstance(loading.transfer, Overlapped):
            self._give_up(loading.ticket)
        logger.log(level, "request %s was not loaded with %r (%s): %s%s", request_id, loading.ticket, kind, error, more)

    # --- telling owners --------------------------------------------------------------

    def _notify(self, step: Step) -> None:
        agent = self._agent
        if agent is None:
            return
        for ticket, seconds in step.renew.items():
            if self._misfits.error(ticket) is None:
                self._notices.append(("renew", agent.renew(ticket, seconds)))
        for ticket in step.give_up:
            self._give_up(ticket)

    def _give_up(self, ticket: Ticket) -> None:
        assert self._agent is not None
        teller = self._agent if self._misfits.error(ticket) is None else self._misfits
        try:
            notice = teller.cancel(ticket)
        except AgentError as error:
            logger.warning("cannot give up a ticket: %s", error)
            return
        if notice is not None:
            self._notices.append(("give up", notice))

    def _hear_notices(self) -> None:
        waiting = []
        for what, notice in self._notices:
            if not notice.done():
                waiting.append((what, notice))
                continue
            try:
                notice.result(0)
            except (TransferError, AgentError) as error:
                logger.warning("cannot %s a ticket: %s", what, error)
        self._notices = waiting


def _end_of(lease: Lease | None) -> str:
    """Returns how a lease has ended, as counters say it."""
    try:
        return "failed" if lease is None else lease.ended.result(0)
    except AgentError:
        return "failed"
