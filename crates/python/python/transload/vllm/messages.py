"""The messages of the scheduler to the workers with each step, and those of the workers to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from transload import Ticket
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from .adapters import Loaded

NULL_BLOCK = 0
"""vLLM's entry for "no block here"."""

Blocks = tuple[list[int], ...]
"""Block numbers of a request as vLLM's manager counts them, for each of its cache groups."""


@dataclass(frozen=True)
class RankAddress(KVConnectorHandshakeMetadata):
    """Tells where a rank can be reached, and how it lays its cache out. Tickets are made of these."""

    agent: str
    host: str
    port: int
    deployment: bytes
    document: str
    """The deployment; its digest is above."""
    incarnation: int


@dataclass(frozen=True)
class Lend:
    """Prefilled blocks that are leased when the step is over."""

    set: bytes
    blocks: Blocks
    content: bytes
    tokens: int
    adapter: tuple[int, str] | None = None
    """vLLM's number of the adapter that computes them, and its digest as the scheduler knows it."""


@dataclass(frozen=True)
class Part:
    """Tokens of a prompt that are loaded from one lease."""

    ticket: Ticket
    content: bytes
    start: int
    end: int

    def behind(self, start: int) -> Part:
        """Returns those of them that are not loaded yet."""
        return replace(self, start=start)


@dataclass(frozen=True)
class Load:
    """Blocks that are filled from another server."""

    ticket: Ticket | None
    """None if the request came without one that could be read: then the load fails."""
    into: Ticket | None
    """The ticket for a push into these blocks; None where they are pulled."""
    blocks: Blocks
    content: bytes
    start: int
    tokens: int
    ahead: list[Part] | None = None
    """The pieces to load while the prompt is still being prefilled. None if it is prefilled already."""


@dataclass(frozen=True)
class Restore:
    """Blocks that are filled from the store."""

    weights: str
    """The name of the weights that have computed them."""
    found: bytes
    blocks: Blocks
    start: int
    tokens: int


@dataclass(frozen=True)
class Save:
    """Blocks that are saved in the store."""

    weights: str
    """The name of the weights that have computed them."""
    missing: bytes
    blocks: Blocks
    tokens: int


@dataclass
class Step(KVConnectorMetadata):
    """Tells workers what to do in a step, by request id."""

    computes: bool = False
    """Whether vLLM computes anything in this step."""
    lend: dict[str, Lend] = field(default_factory=dict)
    lend_ahead: dict[str, list[Lend]] = field(default_factory=dict)
    """Pieces of prompts that are still prefilled."""
    handed_over: dict[str, Ticket] = field(default_factory=dict)
    """Requests whose ticket went out: their blocks are freed when the lease ends."""
    reclaim: list[str] = field(default_factory=list)
    """Requests among them that no decode server has asked for, and whose blocks are wanted back."""
    take_back: list[str] = field(default_factory=list)
    """Requests whose leases are void. No ticket was given out, and readers of a piece learn that it does not count."""
    take_back_all: bool = False
    """Whether all earlier leases are void, including those with a ticket."""
    load: dict[str, Load] = field(default_factory=dict)
    unnamed: dict[str, tuple[Ticket | None, str]] = field(default_factory=dict)
    """Requests that are computed here although they have a ticket, and why the content of their blocks has no name."""
    stop_loading: list[str] = field(default_factory=list)
    renew: dict[Ticket, float] = field(default_factory=dict)
    """Tickets of requests that wait, and for how many seconds; one rank renews them for all."""
    give_up: list[Ticket] = field(default_factory=list)
    """Tickets that will not be used. One rank reports them for all."""
    restore: dict[str, Restore] = field(default_factory=dict)
    keep: list[str] = field(default_factory=list)
    """Requests that have ended, whose blocks stay until they are saved, or are let go."""
    save: dict[str, Save] = field(default_factory=dict)
    let_go: list[str] = field(default_factory=list)
    """Requests of which nothing is to be saved."""
    hold: list[str] = field(default_factory=list)
    """Requests that have ended, whose blocks stay for other servers that ask for what is in them, until they are released."""
    lend_held: list[tuple[str, Lend]] = field(default_factory=list)
    """What other servers have asked for, with the request that holds it."""
    release: list[str] = field(default_factory=list)
    """Requests that are not held any more."""


@dataclass
class Report(KVConnectorWorkerMetadata):
    """Tells the scheduler what happened in a step, but for what vLLM asks the workers itself."""

    parts: dict[str, dict[int, bytes | None]] = field(default_factory=dict)
    """The saved part of each rank, by request; None where it failed."""
    adapters: dict[int, Loaded] = field(default_factory=dict)
    """The adapters that a rank has loaded, if that is news."""
    claimed: set[str] = field(default_factory=set)
    """Requests that were handed over, and that a decode server has asked for since the last report."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        for request_id, ranks in other.parts.items():
            self.parts.setdefault(request_id, {}).update(ranks)
        self.adapters |= other.adapters
        self.claimed |= other.claimed
        return self
