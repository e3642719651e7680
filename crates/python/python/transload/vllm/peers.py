"""Asks other servers for the prompt of a request that came without a ticket: any of them that holds a prefix lends it (`held.py`).

The question is one line of JSON over TLS, as is the answer. Both sides show the certificate of their agents. The question has the digests
of prefixes, and the answer how long the longest one is that the server holds, with a ticket for it. What an answer says is only ever
compared with what was asked. A load that fails ends like any other: the prompt is computed here.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

from transload import Ticket, TicketError
from vllm.logger import init_logger

from .messages import Load
from .stats import Stats

if TYPE_CHECKING:
    from transload import Identity
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

    from .config import Config
    from .content import Computed

logger = init_logger("vllm." + __name__)

LONGEST = 1 << 16
"""Bytes of the longest question or answer."""
MOST_ASKED = 64
"""So many prefixes are asked for at once. Of prompts with more, every second is, or every third, and so on from the longest one."""
_MOST_QUEUED = 64
"""A server with so many questions before it is not asked another one."""
_REST_SECONDS = 10.0
"""A server that has failed to answer is left alone so long."""


def context(config: Config, protocol: int) -> ssl.SSLContext:
    """Returns how to speak to servers of this cluster, with the certificate as it is now: it may have been renewed."""
    assert config.certs is not None
    name, made = config.certificate(0), ssl.SSLContext(protocol)
    # Whom agents trust, and not whom the system does. Names are no hosts'; `is_of` looks at them.
    made.check_hostname, made.verify_mode, made.minimum_version = False, ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_3
    made.load_verify_locations(config.certs / "ca.pem")
    made.load_cert_chain(config.certs / f"{name}.pem", config.certs / f"{name}.key")
    return made


def is_of(cluster: str, role: str, connection: ssl.SSLSocket) -> bool:
    """Returns whether the other side is an agent of a cluster with a role."""
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    uris = [text.partition("?roles=") for kind, text in names if kind == "URI"]  # type: ignore[misc]
    return any(text.startswith(f"transload://{cluster}/agent/") and role in roles.split(",") for text, _, roles in uris)


class _Peer:
    """One server that is asked, by one thread."""

    def __init__(self, config: Config, cluster: str, address: str) -> None:
        self.address, self._config, self._cluster = address, config, cluster
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="transload-ask")
        self._queued: deque[Future] = deque()
        self._connection: ssl.SSLSocket | None = None
        self._rests_until, self._has_failed = 0.0, False

    def ask(self, question: bytes, until: float) -> Future | None:
        """Returns the answer to come; None where the server is not asked. The first question that waits for too long ends the queue."""
        while self._queued and self._queued[0].done():
            self._queued.popleft()
        if time.monotonic() < self._rests_until or len(self._queued) >= _MOST_QUEUED:
            return None
        self._queued.append(self._threads.submit(self._ask, question, until))
        return self._queued[-1]

    def _ask(self, question: bytes, until: float) -> bytes:
        try:
            if self._connection is not None:
                try:
                    return self._exchange(self._connection, question, until)
                except OSError:
                    # It may be started anew, or have closed what was idle.
                    self._close()
            answer = self._exchange(self._connect(until), question, until)
            self._has_failed = False
            return answer
        except (OSError, ValueError) as error:
            self._close()
            self._rests_until = time.monotonic() + _REST_SECONDS
            if not self._has_failed:
                logger.warning("%s is not asked for prompts for %d s each time that it fails: %s", self.address, _REST_SECONDS, error)
            self._has_failed = True
            return b"{}"

    def _connect(self, until: float) -> ssl.SSLSocket:
        host, _, port = self.address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), _left(until))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = context(self._config, ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        if not is_of(self._cluster, "serve", self._connection):
            raise ConnectionError("its certificate is not that of an agent of this cluster that serves")
        return self._connection

    def _exchange(self, connection: ssl.SSLSocket, question: bytes, until: float) -> bytes:
        connection.settimeout(_left(until))
        connection.sendall(question)
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < LONGEST:
            # One that drips has no more time than one that is silent.
            connection.settimeout(_left(until))
            if not (part := connection.recv(LONGEST)):
                break
            answer += part
        if not answer.endswith(b"\n"):
            raise ConnectionError("it has closed the connection, or its answer has no end")
        return answer

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def shutdown(self) -> None:
        self._threads.submit(self._close)
        self._threads.shutdown(wait=False)


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError("it has not answered in time")
    return left


@dataclass
class _Look:
    by: Computed
    prefixes: dict[int, bytes]
    since: float
    asked: list[tuple[str, Future]]
    tickets: list[tuple[int, Ticket]] = field(default_factory=list)
    """What has been found so far, while others have not answered: how many tokens, and the ticket for them."""
    found: tuple[int, Ticket] | None = None
    start: int = 0
    """Tokens that were cached here when vLLM last asked."""


class Peers:
    """Looks for prompts at other servers. All methods are for the scheduler's thread, and none waits."""

    def __init__(self, config: Config, identity: Identity) -> None:
        self._config, self._identity = config, identity
        self._peers = [_Peer(config, identity.cluster, address) for address in config.pull_from]
        self._looks: dict[str, _Look] = {}
        self._life = ""
        self.stats = Stats()
        self.given_up: list[Ticket] = []
        """Tickets that are not needed after all."""

    def meet_workers(self, incarnation: int) -> None:
        """Takes note of which server this is, so that it is not taken for another one by itself."""
        self._life = f"{incarnation:032x}"

    def matched_tokens(
        self, request: Request, prefixes: Callable[[], dict[int, bytes]], by: Computed | None, computed: int
    ) -> int | None:
        """Returns how many tokens behind the `computed` ones are loaded; None while that is not known. `prefixes` returns digests."""
        look = self._looks.get(request.request_id)
        if look is None:
            if by is None:
                return 0
            look = self._looks[request.request_id] = self._ask(by, prefixes(), computed)
        if look.asked:
            longest = max(look.prefixes)
            done = {address: asked for address, asked in look.asked if asked.done()}
            look.asked = [each for each in look.asked if each[0] not in done]
            answers = [(address, asked.result()) for address, asked in done.items()]
            look.tickets += [found for address, answer in answers if (found := self._read(address, answer, look)) is not None]
            is_late = time.monotonic() - look.since >= self._config.ask_seconds
            if look.asked and not is_late and all(tokens < longest for tokens, _ in look.tickets):
                return None
            look.tickets.sort(key=lambda found: found[0])
            look.found = look.tickets.pop() if look.tickets else None
            self.stats.looked_up("found" if look.found else "late" if look.asked else "none")
            look.asked = []
            self._give_up_others(look)
        look.start = computed
        # A lease is not renewed while vLLM has no room for the request.
        is_stale = time.monotonic() - look.since > self._config.lease_seconds / 2
        if look.found is not None and (look.by != by or is_stale):
            self._give_up(look)
        return 0 if look.found is None else max(0, look.found[0] - computed)

    def _ask(self, by: Computed, prefixes: dict[int, bytes], computed: int) -> _Look:
        now, wanted = time.monotonic(), [end for end in sorted(prefixes, reverse=True) if end > computed]
        wanted = wanted[:: -(-len(wanted) // MOST_ASKED) or 1]
        look = _Look(by, {end: prefixes[end] for end in wanted}, now, [])
        if wanted:
            named = [[end, look.prefixes[end].hex()] for end in wanted]
            question = json.dumps({"life": self._life, "prefixes": named}).encode() + b"\n"
            asked = ((peer.address, peer.ask(question, now + self._config.ask_seconds)) for peer in self._peers)
            look.asked = [(address, answer) for address, answer in asked if answer is not None]
        return look

    def _read(self, address: str, answer: bytes, look: _Look) -> tuple[int, Ticket] | None:
        try:
            said = json.loads(answer)
            if not said:
                return None
            tokens, ticket = said["tokens"], Ticket(said["ticket"])
            if type(tokens) is not int or tokens not in look.prefixes or ticket.open(self._identity)["valid_tokens"] != tokens:
                raise ValueError("its ticket is not for what was asked")
            return tokens, ticket
        except (ValueError, TypeError, KeyError, RecursionError, TicketError) as error:
            logger.warning("%s has answered what is no answer: %s", address, error)
            return None

    def allocated(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> Load | None:
        """Returns what workers load, where a request has got blocks for `tokens` tokens of another server."""
        look = self._looks.get(request.request_id)
        if look is None or look.found is None:
            return None
        end, ticket = look.found
        if look.start + tokens != end or not tokens:
            self._give_up(look)
            return None
        # It is loaded once. If that fails, it is computed.
        look.found = None
        return Load(ticket, None, blocks.get_block_ids(), look.prefixes[end], look.start, tokens)

    def _give_up_others(self, look: _Look) -> None:
        self.given_up.extend(ticket for _, ticket in look.tickets)
        look.tickets = []

    def _give_up(self, look: _Look) -> None:
        self._give_up_others(look)
        if look.found is not None:
            self.given_up.append(look.found[1])
            look.found = None

    def finished(self, request_id: str) -> None:
        """Forgets a request, which has ended."""
        look = self._looks.pop(request_id, None)
        if look is not None:
            self._give_up(look)

    def forget(self) -> None:
        """Gives up all that is not loaded yet."""
        for look in self._looks.values():
            look.asked = []
            self._give_up(look)

    def shutdown(self) -> None:
        for peer in self._peers:
            peer.shutdown()
