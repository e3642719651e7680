"""Moves the KV cache of language models between engines that lay it out differently.

==================  ==================================================================
to do this          begin with
==================  ==================================================================
describe a cache    `Deployment`, a checked ``transload.deployment/1`` document
see what moves      `Plan`, and `Plan.bind` for the chunks of one request
reach memory        `Memory`: a tensor, an array, or an address
move blocks         `Agent`: `Agent.lease` and `Ticket.mint` here, `Agent.pull` there
==================  ==================================================================

Sizes are bytes, times are seconds, positions and lengths of sequences are tokens.
"""

from ._transload import (
    Agent,
    AgentError,
    BoundPlan,
    BoundRoute,
    CacheMemoryError,
    Completion,
    Deployment,
    DocumentError,
    Group,
    Identity,
    IdentityError,
    Lease,
    LeaseError,
    Memory,
    Plan,
    PlanError,
    Ticket,
    TicketError,
    Transfer,
    TransferError,
    TransloadError,
    __version__,
    content_digest,
)

__all__ = [
    "Agent",
    "AgentError",
    "BoundPlan",
    "BoundRoute",
    "CacheMemoryError",
    "Completion",
    "Deployment",
    "DocumentError",
    "Group",
    "Identity",
    "IdentityError",
    "Lease",
    "LeaseError",
    "Memory",
    "Plan",
    "PlanError",
    "Ticket",
    "TicketError",
    "Transfer",
    "TransferError",
    "TransloadError",
    "__version__",
    "content_digest",
]
