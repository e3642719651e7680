"""Holds the blocks of prompts whose requests have ended, and lends them to servers that ask for what is in them (`peers.py`).

vLLM's scheduler is not always at work when somebody asks, and only its own thread may touch blocks. So a thread of this module answers out
of an index of what is held, and makes a ticket. The scheduler's next step has the workers open the lease; who pulls sooner waits for it.
What is held is bounded in time and in blocks, and given up, the oldest first, where vLLM needs blocks.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import ssl
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterable

from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .config import ConfigError
from .messages import NULL_BLOCK, Blocks, Lend, Step
from .peers import LONGEST, MOST_ASKED, context, is_of

if TYPE_CHECKING:
    from transload import Identity, Ticket
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from .config import Config
    from .content import Computed

logger = init_logger("vllm." + __name__)

COMPUTED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
"""Ends of a request whose blocks hold its prompt."""
MOST_HELD = 256
"""So many requests are held at most, whatever their length."""
MOST_LENT = 4096
"""So many tickets are made within the time that a lease lasts. Who asks then is told that nothing is there."""
MOST_ASKING = 128
"""So many connections are answered, each by a thread."""
_IDLE_SECONDS = 600.0
_SOON_SECONDS = 1.0
"""Released blocks are vLLM's again this soon, unless somebody reads them, or the request is lent or saved as well."""


@dataclass
class _Kept:
    blocks: Blocks
    prefixes: dict[bytes, int]
    """How many tokens each digest is of."""
    until: float
    is_still: Callable[[], bool]
    """Returns whether it was computed with the adapter that was named, as workers tell after the step that ended it."""

    @property
    def all_blocks(self) -> set[int]:
        return {block for group in self.blocks for block in group} - {NULL_BLOCK}


class Held:
    """Decides what is held, and says to whom it is lent. Only `answer` is for other threads than the scheduler's."""

    def __init__(self, config: Config, identity: Identity, cache: KVCacheConfig, mint: Callable[[bytes, int], Ticket]) -> None:
        """`mint` makes a ticket for a lease set of so many tokens."""
        self._config, self._identity, self._mint = config, identity, mint
        self._most, self._reserve = int(cache.num_blocks * config.held_share), cache.num_blocks // 20
        self._block_sizes = [group.kv_cache_spec.block_size for group in cache.kv_cache_groups]
        self._lock = threading.Lock()
        """For all that `answer` reads or writes."""
        self._kept: dict[str, _Kept] = {}
        self._blocks: Counter[int] = Counter()
        """How many of these have each block."""
        self._index: dict[bytes, dict[str, None]] = {}
        """Who has each prefix, the last one last."""
        self._asked: deque[tuple[str, Lend]] = deque()
        self._lent: deque[float] = deque()
        self._by: dict[str, Computed] = {}
        self._resuming: dict[str, int] = {}
        """Blocks of requests that vLLM has not scheduled since they have begun to load."""
        self._releasing: dict[str, tuple[int, float]] = {}
        """The number of blocks of each request that was released, and when, until the workers report it."""
        self._wanted, self._life, self._is_open = 0, "", True
        self._server: _Server | None = None
        self.rests_at: threading.Condition | None = None
        """What the engine waits for while it rests."""

    def begin(self, incarnation: int) -> None:
        """Answers from now on, on the TCP port with the number of rank 0's UDP port.

        Raises:
            ConfigError: somebody else has it.
        """
        self._life = f"{incarnation:032x}"
        if self._server is None:
            self._server = _Server(self, self._config, self._identity.cluster)

    # --- what others ask -------------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        """Returns whether the next step has something for the workers."""
        return bool(self._asked)

    def answer(self, question: bytes) -> bytes:
        """Returns what is said to a question: the longest prefix of those in it that is held, and a ticket for it, or nothing.

        Raises:
            ValueError, TypeError, KeyError, RecursionError: it is none.
        """
        asked = json.loads(question)
        if asked["life"] == self._life:
            return b"{}\n"
        named = [bytes.fromhex(digest) for _, digest in asked["prefixes"][:MOST_ASKED]]
        now, name = time.monotonic(), os.urandom(16)
        with self._lock:
            while self._lent and now - self._lent[0] > self._config.lease_seconds:
                self._lent.popleft()
            known = [(digest, next(reversed(self._index[digest]))) for digest in named if digest in self._index]
            if not known or len(self._lent) >= MOST_LENT:
                return b"{}\n"
            digest, request_id = max(known, key=lambda each: self._kept[each[1]].prefixes[each[0]])
            kept = self._kept[request_id]
            tokens = kept.prefixes[digest]
            self._lent.append(now)
            self._asked.append((request_id, Lend(name, kept.blocks, digest, tokens)))
        if self.rests_at is not None:
            with self.rests_at:
                self.rests_at.notify_all()
        return json.dumps({"tokens": tokens, "ticket": self._mint(name, tokens).text}).encode() + b"\n"

    # --- what is held ----------------------------------------------------------------

    def hold(self, is_open: bool, step: Step) -> None:
        """Takes note of whether vLLM goes on. It waits for all blocks before it pauses, sleeps or ends, so nothing is held then."""
        self._is_open = is_open
        if not is_open:
            self._release_all(step)

    def allocated(self, request: Request, by: Computed | None, is_loading: bool) -> None:
        """Takes note of what computes a request, when it gets blocks, and whether it loads first."""
        self._wanted = 0
        if by is not None:
            self._by[request.request_id] = by
        if is_loading:
            self._resuming[request.request_id] = self._blocks_of(request.num_tokens)

    def finished(
        self,
        request: Request,
        blocks: Blocks,
        by: Computed | None,
        prefixes: Callable[[], dict[int, bytes]],
        is_still: Callable[[], bool],
        step: Step,
    ) -> bool:
        """Returns whether the blocks of a finished request stay. `by`: what computes requests now. `is_still`: whether this one was
        computed with that, once the workers have told."""
        self._resuming.pop(request.request_id, None)
        then, tokens = self._by.pop(request.request_id, None), request.num_prompt_tokens
        # Not what a step that is still under way computes.
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        if then is None or then != by or request.status not in COMPUTED or computed < tokens or request.resumable or not any(blocks):
            return False
        named = {digest: end for end, digest in prefixes().items()}
        kept = _Kept(tuple(map(list, blocks)), named, time.monotonic() + self._config.held_seconds, is_still)
        # Blocks that another server still reads are pinned after their release, and count too.
        released = sum(blocks for blocks, _ in self._releasing.values())
        if not named or len(kept.all_blocks) + released > self._most or not self._is_open:
            return False
        with self._lock:
            known = self._index.get(next(reversed(named)))
            if known is not None:
                # All of it is held already, and is of use.
                last = next(reversed(known))
                self._kept[last].until = kept.until
                self._kept[last] = self._kept.pop(last)
                return False
            self._kept[request.request_id] = kept
        self._blocks.update(kept.all_blocks)
        step.hold.append(request.request_id)
        while len(self._kept) > MOST_HELD or len(self._blocks) > self._most:
            self._release(next(iter(self._kept)), step)
        return True

    def wants(self, tokens: int) -> None:
        """Takes note of the next request in vLLM's queue, which takes blocks for so many tokens unless it is `allocated`."""
        self._wanted = self._blocks_of(tokens)

    def _blocks_of(self, tokens: int) -> int:
        return sum(-(-tokens // size) for size in self._block_sizes)

    def build_step(self, step: Step, free: int, scheduled: Iterable[str]) -> None:
        """Adds what workers lend and release to a step of these requests, before which so many blocks are free."""
        for request_id in scheduled:
            self._resuming.pop(request_id, None)
        now = time.monotonic()
        free += sum(blocks for blocks, since in self._releasing.values() if now - since < _SOON_SECONDS)
        for request_id in step.hold:
            # Unless it has been given up already, nobody has been told of it yet: workers tell of adapters after its last step.
            if (kept := self._kept.get(request_id)) is not None and kept.is_still():
                with self._lock:
                    for digest in kept.prefixes:
                        self._index.setdefault(digest, {})[request_id] = None
            elif kept is not None:
                self._release(request_id, step)
        for request_id, kept in list(self._kept.items()):
            if now >= kept.until:
                self._release(request_id, step)
        while self._kept and free < max([self._wanted, *self._resuming.values()]) + self._reserve:
            request_id = next(iter(self._kept))
            free += len(self._kept[request_id].all_blocks)
            self._release(request_id, step)
        self._wanted = 0
        with self._lock:
            # Workers lend also what is released in this step, and then cancel it: a server that already has the ticket gets an answer
            # at once, and does not wait for a lease that never opens.
            step.lend_held.extend(self._asked.popleft() for _ in range(len(self._asked)))

    def _release(self, request_id: str, step: Step) -> None:
        with self._lock:
            kept = self._kept.pop(request_id)
            for digest in kept.prefixes:
                holders = self._index.get(digest, {})
                holders.pop(request_id, None)
                if not holders:
                    self._index.pop(digest, None)
        blocks = kept.all_blocks
        self._blocks.subtract(blocks)
        for block in blocks:
            if not self._blocks[block]:
                del self._blocks[block]
        self._releasing[request_id] = len(blocks), time.monotonic()
        step.release.append(request_id)

    def hear(self, freed: set[str]) -> None:
        """Takes note of requests whose blocks are vLLM's again."""
        for request_id in freed:
            self._releasing.pop(request_id, None)

    def forget(self, step: Step) -> None:
        """Releases everything: it is void."""
        self._by.clear()
        self._release_all(step)
        with self._lock:
            self._asked.clear()

    def _release_all(self, step: Step) -> None:
        for request_id in list(self._kept):
            self._release(request_id, step)

    def shutdown(self) -> None:
        if self._server is not None:
            self._server.end()
        with self._lock:
            self._index.clear()


class _Server(socketserver.ThreadingTCPServer):
    """Answers questions of this cluster's agents that may pull."""

    allow_reuse_address, daemon_threads, block_on_close, request_queue_size = True, True, False, MOST_ASKING

    def __init__(self, held: Held, config: Config, cluster: str) -> None:
        self.held, self.config, self.cluster = held, config, cluster
        self._places = threading.BoundedSemaphore(MOST_ASKING)
        is_six = ":" in config.host
        self.address_family = socket.AF_INET6 if is_six else socket.AF_INET
        try:
            super().__init__(("::" if is_six else "0.0.0.0", config.port), _Connection)
        except OSError as error:
            raise ConfigError(
                f"kv_connector_extra_config.held_share is given, and TCP port {config.port} cannot be listened at: {error}"
            ) from error
        threading.Thread(target=self.serve_forever, name="transload-held", daemon=True).start()

    def process_request(self, request, client_address) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # There is no thread for it.
            self._places.release()
            raise

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request, client_address) -> None:
        logger.debug("the connection of %s has ended", client_address, exc_info=True)

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        config = self.server.config
        self.request.settimeout(config.connect_seconds)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context(config, ssl.PROTOCOL_TLS_SERVER).wrap_socket(self.request, server_side=True) as connection:
            if not is_of(self.server.cluster, "pull", connection):
                raise ConnectionError("its certificate is not that of an agent of this cluster that pulls")
            connection.settimeout(_IDLE_SECONDS)
            with connection.makefile("rb") as questions:
                while (question := questions.readline(LONGEST)).endswith(b"\n"):
                    connection.sendall(self.server.held.answer(question))
