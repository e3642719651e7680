"""Loads a prompt while it is still being prefilled: in pieces, each as soon as the prefill server has computed it.

Both servers get the same random id with the request, and at the same time. From it and from the prompt's length they
derive the lease sets, so that nothing has to travel from one to the other meanwhile: the prefill server opens a lease for the
tokens before each end, and the decode server asks for it before it is there, and waits. The last lease is that of the whole
prompt, from which all that has not come in pieces is loaded. Only when that has come is anything of it used.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from transload import AgentError, TransferError
from vllm.logger import init_logger

if TYPE_CHECKING:
    from transload import Transfer

    from .messages import Part

logger = init_logger("vllm." + __name__)

PARAMETER = "transload_overlap"
"""The field of ``kv_transfer_params`` with the id."""
LIFE = "transload_life"
"""The field of a prefill server's answer that says which life of which engine has lent the prompt under that id."""

PIECE_TOKENS = 256
"""Pieces have a multiple of this length, so that they end where whole blocks and the tiles of codecs do."""
MOST_PIECES = 16
"""The most pieces of a prompt. The rest takes a 16th of the time after the prefill, while each piece costs a lease and a request on every
rank."""
_AT_A_TIME = 2
"""The number of pieces that are requested at once. So the next one is there when a step of a busy engine looks for it."""


@dataclass(frozen=True)
class Overlap:
    """Names the lease sets of one request."""

    id: bytes

    @classmethod
    def read(cls, given: Any) -> Overlap | None:
        """Parses the id that a proxy has drawn. Returns None if it is no id."""
        try:
            return cls(bytes.fromhex(given)) if isinstance(given, str) and len(given) == 32 else None
        except ValueError:
            return None

    def set(self, end: int) -> bytes:
        """Returns the lease set of the tokens before `end`."""
        return hashlib.blake2b(b"%d" % end, key=self.id, digest_size=16).digest()


def piece_ends(tokens: int) -> list[int]:
    """Returns the ends of a prompt's pieces. The last lease covers the rest."""
    least = -(-tokens // MOST_PIECES)
    size = -(-least // PIECE_TOKENS) * PIECE_TOKENS
    return list(range(size, tokens, size)) if size else []


class Overlapped:
    """A load in parts, in the place of a `Transfer`. What does not come in pieces comes with the lease of the whole prompt."""

    def __init__(self, ahead: list[Part], whole: Part, seconds: float, pull: Callable[[Part, float], Transfer]) -> None:
        """`pull` begins to load a part, with this time limit in seconds. It keeps the lease if that fails."""
        self._pull = pull
        self._until = time.monotonic() + seconds
        self._ahead, self._whole = deque(ahead), whole
        self._under_way: deque[tuple[Part, Transfer]] = deque()
        self._reached = whole.start
        self._reports: list[dict[str, Any]] = []
        self._error: TransferError | AgentError | None = None
        self._go_on()

    @property
    def ended(self) -> Overlapped:
        return self

    def cancel(self) -> None:
        if self._error is None and self._reached < self._whole.end:
            self._error = TransferError("it was cancelled")
            self._error.kind, self._error.is_misfit = "cancelled", False
        self._cut()

    def done(self) -> bool:
        """Returns whether nothing touches the blocks any more. It starts the next parts."""
        while self._under_way and self._under_way[0][1].ended.done():
            self._take(*self._under_way.popleft())
        self._go_on()
        return not self._under_way

    def wait(self, seconds: float) -> None:
        if self._under_way:
            self._under_way[0][1].ended.wait(seconds)

    def result(self, _: float) -> dict[str, Any]:
        """Returns one report of all parts.

        Raises:
            TransferError, AgentError: the rest of the prompt did not come, or the load was cancelled.
        """
        if self._error is not None:
            raise self._error
        return self._reports[-1] | {
            "bytes": sum(report["bytes"] for report in self._reports),
            "queued": self._reports[0]["queued"],
            "routes": [route for report in self._reports for route in report["routes"]],
        }

    def _go_on(self) -> None:
        while self._ahead and len(self._under_way) < _AT_A_TIME:
            self._begin(self._ahead.popleft())
        if not self._under_way and self._error is None and self._reached < self._whole.end:
            self._begin(self._whole.behind(self._reached))

    def _begin(self, part: Part) -> None:
        try:
            transfer = self._pull(part, max(0.0, self._until - time.monotonic()))
        except (TransferError, AgentError) as error:
            self._failed(part, error)
        else:
            self._under_way.append((part, transfer))

    def _take(self, part: Part, transfer: Transfer) -> None:
        is_next = part.start == self._reached
        try:
            report = transfer.ended.result(0)
        except (TransferError, AgentError) as error:
            is_early = isinstance(error, TransferError) and error.kind == "unknown"
            if is_early and is_next and self._error is None and time.monotonic() < self._until:
                # It is not computed yet, and an agent lets others wait for a lease for some seconds only.
                self._begin(part)
                self._under_way.rotate()
            else:
                self._failed(part, error)
        else:
            if is_next:
                self._reached = part.end
                self._reports.append(report)

    def _failed(self, part: Part, error: TransferError | AgentError) -> None:
        if part.end == self._whole.end:
            self._error = self._error or error
        elif self._ahead or part.start == self._reached:
            logger.info("tokens from %d on come when all are computed, and not with %r: %s", part.start, part.ticket, error)
        self._cut()

    def _cut(self) -> None:
        self._ahead.clear()
        for _, transfer in self._under_way:
            try:
                transfer.cancel()
            except AgentError:
                pass  # It has ended with the agent.
