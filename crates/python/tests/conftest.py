"""Two sides of one model, and a cluster that they are in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import fake_driver
from vllm_stand_in.fixtures import connector, engine, mode, server_certs, two_engines

import transload


ATTENTION = {"kind": "attention", "head_dim": 64, "dtype": "bf16"}


def document(tp=1, block_size=16, order="NHD", num_blocks=16, heads=2, layers=4):
    """A cache of `layers` layers: `heads` heads of 64 elements in bf16."""
    return {
        "schema": "transload.deployment/1",
        "tp": tp,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "order": order,
        "group": [{"name": "attn", "layers": f"0-{layers - 1}", "spec": [ATTENTION | {"heads": heads}]}],
    }


@pytest.fixture(scope="session")
def certs(tmp_path_factory) -> Path:
    """What `transload certs init` makes: a prefill and a decode agent."""
    folder = tmp_path_factory.mktemp("cluster") / "certs"
    command = [sys.executable, "-m", "transload", "certs", "init", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Engine:
    """An engine of one process: a deployment, memory of each rank, and an agent."""

    def __init__(self, certs, name, *, options=None, allocate=transload.Memory.allocate, **shape):
        self.deployment = transload.Deployment(document(**shape))
        ranks, groups = range(self.deployment.ranks), self.deployment.groups
        self.memories = {rank: [allocate(group.allocations(rank)) for group in groups] for rank in ranks}
        self.identity = transload.Identity(certs, name)
        self.agent = transload.Agent(
            self.identity, self.deployment, self.memories, bind="127.0.0.1:0", **(options or {})
        )

    def ticket(self, set, tokens, **more):
        """A ticket for a lease set of this engine."""
        address = (self.agent.name, "127.0.0.1", self.agent.port)
        return transload.Ticket.mint(
            self.identity,
            set,
            [address] * self.deployment.ranks,
            deployment=self.agent.deployment_digest,
            incarnation=self.agent.incarnation,
            valid_tokens=tokens,
            **more,
        )


LENGTH = 30
CONTENT = transload.Prompt(range(LENGTH)).digest()
TABLES = ([[5, 2]], [[6]])


class Pair:
    """A prefill engine of one rank with blocks of 16, and a decode engine of two with blocks of 64.

    `memory` allocates that of each. What they move is a request of `LENGTH` tokens, in the blocks of `TABLES`.
    """

    def __init__(self, certs, memory=(transload.Memory.allocate,) * 2):
        self.prefill = Engine(certs, "prefill", allocate=memory[0])
        self.decode = Engine(certs, "decode", tp=2, block_size=64, order="HND", allocate=memory[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.decode.agent.shutdown(1)
        self.prefill.agent.shutdown(1)

    def lease(self, set=None, **more):
        """Leases the request's blocks, and returns that and the ticket."""
        set = set or os.urandom(16)
        return self.prefill.agent.lease(set, 0, TABLES[0], CONTENT, LENGTH, **more), self.prefill.ticket(set, LENGTH)

    def pull(self, ticket, tables=TABLES[1], content=CONTENT, length=LENGTH, **more):
        return self.decode.agent.pull(ticket, [0, 1], tables, content, length, **more)

    def open(self, **more):
        """Opens the blocks for a push, and returns that and the ticket."""
        set = os.urandom(16)
        opened = [self.decode.agent.open(set, rank, TABLES[1], CONTENT, LENGTH, **more) for rank in (0, 1)]
        return opened, self.decode.ticket(set, LENGTH, push=True)

    def push(self, ticket, **more):
        return self.prefill.agent.push(ticket, [0], TABLES[0], CONTENT, LENGTH, **more)

    def is_right(self):
        """Whether the destination holds what a direct copy would have: the request in its blocks, and zeros."""
        plan = transload.Plan(self.prefill.deployment, self.decode.deployment, LENGTH)
        right = {rank: transload.Memory.allocate([n for _, n in memory.allocations]) for rank, [memory] in self.decode.memories.items()}
        for route in plan.bind(*TABLES).routes:
            route.copy(self.prefill.memories[route.src_rank][0], right[route.dst_rank])
        return all(memory.read(0, memory.nbytes) == right[rank].read(0, memory.nbytes) for rank, [memory] in self.decode.memories.items())


@pytest.fixture
def pair(certs):
    with Pair(certs) as pair:
        yield pair


def fill(memory):
    """Writes bytes that tell where they are, and returns them."""
    content = []
    for number, (_, length) in enumerate(memory.allocations):
        data = bytes((7 * at + at // 251 + number) % 256 for at in range(length))
        memory.write(0, data, number)
        content.append(data)
    return content


# Fixtures of the fake driver and of the vLLM connector's tests, for pytest to find, are the rest.
__all__ = [
    "Engine", "Pair", "connector", "document", "engine", "fake_driver", "fill", "server_certs", "two_engines",
]
