"""What the scheduler tells the workers with each step, and what workers tell it when they start."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)

NULL_BLOCK = 0
"""vLLM's entry for "no block here"."""

Blocks = tuple[list[int], ...]
"""Block numbers of a request as vLLM's manager counts them, for each of its cache groups."""


@dataclass(frozen=True)
class RankAddress(KVConnectorHandshakeMetadata):
    """What tickets say of a rank."""

    agent: str
    host: str
    port: int
    deployment: bytes
    incarnation: int


@dataclass(frozen=True)
class Lend:
    """Prefilled blocks that are leased when the step is over."""

    set: bytes
    blocks: Blocks
    content: bytes
    tokens: int


@dataclass(frozen=True)
class Load:
    """Blocks that are filled from another server."""

    ticket: str
    blocks: Blocks
    content: bytes
    start: int
    tokens: int


@dataclass
class Step(KVConnectorMetadata):
    """What is to be done in a step, by request id."""

    lend: dict[str, Lend] = field(default_factory=dict)
    handed_over: list[str] = field(default_factory=list)
    """Requests whose ticket went out: their blocks are freed when the lease ends."""
    take_back: list[str] = field(default_factory=list)
    """Requests whose lease is void: no ticket ever went out."""
    load: dict[str, Load] = field(default_factory=dict)
    stop_loading: list[str] = field(default_factory=list)
    renew: list[str] = field(default_factory=list)
    """Tickets of requests that wait; one rank renews them for all."""
    give_up: list[str] = field(default_factory=list)
    """Tickets that nobody will use; one rank tells for all."""
