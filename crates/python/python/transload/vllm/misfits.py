"""Prefill servers whose blocks can never be loaded here: the two cache different things, or speak no common version.

A server that is started again counts as another one, since it may have been started with other settings. Two agents that cache
different things do not talk to each other. An agent without memory caches nothing, so any agent of its protocol talks to it: through
it this server tells such a prefill server to free the blocks that it holds. A server that speaks no common version of the protocol
talks to no agent of this server. It is told nothing, and frees its blocks when their leases expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transload import Agent, Completion, Deployment, Ticket, TicketError, TransferError

if TYPE_CHECKING:
    from transload import Identity

NOTHING = {
    "schema": "transload.deployment/1",
    "block_size": 1,
    "num_blocks": 1,
    "group": [{"name": "none", "layers": "0", "spec": [{"kind": "opaque", "heads": 1, "entry_bytes": 1}]}],
}
"""The deployment of an agent without memory."""
MOST = 256
"""The most servers that are remembered. Beyond it the oldest is forgotten and tried again."""

_Life = tuple[bytes, int]


class Misfits:
    """Remembers the prefill servers that do not fit one worker's."""

    def __init__(self, identity: Identity | None, bind: str) -> None:
        """`bind`: the address of the agent without memory, which is made when there is something to give back."""
        self._identity, self._bind = identity, bind
        self._met: dict[_Life, TransferError] = {}
        self._agent: Agent | None = None

    def error(self, ticket: Ticket) -> TransferError | None:
        """Returns why nothing is loaded from the server of a ticket, if that is known."""
        return self._met.get(self._life(ticket)) if self._met else None

    def meet(self, ticket: Ticket, error: TransferError) -> bool:
        """Takes note that the server of a ticket does not fit, and returns whether that was not known."""
        life = self._life(ticket)
        if life is None or life in self._met:
            return False
        # Its traceback would keep what this step has in hand.
        self._met[life] = error.with_traceback(None)
        if len(self._met) > MOST:
            del self._met[next(iter(self._met))]
        return True

    def cancel(self, ticket: Ticket) -> Completion | None:
        """Cancels the lease of such a server's ticket. Returns None where the server cannot be notified.

        Raises:
            AgentError: there can be no agent for it.
        """
        if (misfit := self.error(ticket)) is not None and misfit.kind == "version":
            return None
        assert self._identity is not None
        if self._agent is None:
            self._agent = Agent(self._identity, Deployment(NOTHING), {}, bind=self._bind, lanes=1)
        return self._agent.cancel(ticket)

    def shutdown(self) -> None:
        """vLLM is ending."""
        if self._agent is not None:
            self._agent.shutdown(1.0)

    def _life(self, ticket: Ticket) -> _Life | None:
        try:
            said = ticket.open(self._identity)
        except TicketError:
            return None
        return said["deployment"], said["incarnation"]
