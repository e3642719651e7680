"""Moves the KV cache of language models between engines that lay it out differently.

==================  ==================================================================
to do this          begin with
==================  ==================================================================
describe a cache    `Deployment`, a checked ``transload.deployment/1`` document
see what moves      `Plan`, and `Plan.bind` for the chunks of one request
reach memory        `Memory`: a tensor, an array, or an address; `cuda.available` says whether of a GPU
wait for a GPU      `Mark`, which leases and transfers take as `after`
move blocks         `Agent`: `Agent.lease` and `Ticket.mint` here, `Agent.pull` there
tell proxies        `Announcement` of a server
keep blocks         `Archive`: `Archive.save` out of one layout, `Archive.restore` into another
keep any bytes      `Objects`, under keys of the engine's own; `ObjectQueue` in the background
keep states         `LlamaStates` of llama.cpp's sequences
keep an engine's    `transload.hf` for transformers, `transload.vllm`, `transload.sglang`, `transload.lmcache`, or
                    `transload.llama` for llama-cpp-python: each is imported by itself, and needs its engine
==================  ==================================================================

Sizes are bytes, times are seconds, positions and lengths of sequences are tokens.
"""

from . import cuda
from ._transload import (
    DEBUG_BUILD,
    Agent,
    AgentError,
    Announcement,
    Archive,
    ArchiveError,
    BoundPlan,
    BoundRoute,
    CacheMemoryError,
    Completion,
    CudaError,
    Deployment,
    DocumentError,
    Found,
    Group,
    Identity,
    IdentityError,
    Lease,
    LeaseError,
    LlamaFound,
    LlamaStates,
    Mark,
    Memory,
    Missing,
    ObjectInfo,
    ObjectQueue,
    Objects,
    Permit,
    Plan,
    PlanError,
    Prompt,
    Staged,
    Staging,
    StoreError,
    Ticket,
    TicketError,
    Transfer,
    TransferError,
    TransloadError,
    __version__,
    default_instance,
    file_digest,
    new_incarnation,
)

__all__ = [
    "DEBUG_BUILD",
    "Agent",
    "AgentError",
    "Announcement",
    "Archive",
    "ArchiveError",
    "BoundPlan",
    "BoundRoute",
    "CacheMemoryError",
    "Completion",
    "CudaError",
    "Deployment",
    "DocumentError",
    "Found",
    "Group",
    "Identity",
    "IdentityError",
    "Lease",
    "LeaseError",
    "LlamaFound",
    "LlamaStates",
    "Mark",
    "Memory",
    "Missing",
    "ObjectInfo",
    "ObjectQueue",
    "Objects",
    "Permit",
    "Plan",
    "PlanError",
    "Prompt",
    "Staged",
    "Staging",
    "StoreError",
    "Ticket",
    "TicketError",
    "Transfer",
    "TransferError",
    "TransloadError",
    "__version__",
    "cuda",
    "default_instance",
    "file_digest",
    "new_incarnation",
]
