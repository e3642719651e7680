"""Two sides of one model, and a cluster that they are in."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import fake_driver, on_gpu
from vllm_stand_in.fixtures import connector, engine, mode, server_certs, two_engines

import transload


def document(tp=1, block_size=16, order="NHD", num_blocks=16, heads=2, layers=4):
    """A cache of `layers` layers: `heads` heads of 64 elements in bf16."""
    return {
        "schema": "transload.deployment/1",
        "tp": tp,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "order": order,
        "group": [
            {
                "name": "attn",
                "layers": f"0-{layers - 1}",
                "spec": [
                    {"kind": "attention", "heads": heads, "head_dim": 64, "dtype": "bf16"}
                ],
            }
        ],
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
        self.memories = {
            rank: [
                allocate(group.allocations(rank))
                for group in self.deployment.groups
            ]
            for rank in range(self.deployment.ranks)
        }
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


@pytest.fixture
def pair(certs):
    """A prefill engine of one rank and a decode engine of two, blocks of 16 and 64."""
    prefill = Engine(certs, "prefill")
    decode = Engine(certs, "decode", tp=2, block_size=64, order="HND")
    yield prefill, decode
    decode.agent.shutdown(1)
    prefill.agent.shutdown(1)


def fill(memory):
    """Writes bytes that tell where they are, and returns them."""
    content = []
    for number, (_, length) in enumerate(memory.allocations):
        data = bytes((7 * at + at // 251 + number) % 256 for at in range(length))
        memory.write(0, data, number)
        content.append(data)
    return content


def expected(src, dst, tables, tokens):
    """What the memories of `dst` hold after a direct copy out of those of `src`."""
    plan = transload.Plan(src.deployment, dst.deployment, tokens)
    fresh = {
        rank: transload.Memory.allocate([n for _, n in groups[0].allocations])
        for rank, groups in dst.memories.items()
    }
    for route in plan.bind(*tables).routes:
        route.copy(src.memories[route.src_rank][0], fresh[route.dst_rank])
    return {rank: memory.read(0, memory.nbytes) for rank, memory in fresh.items()}


# Fixtures of the fake driver and of the vLLM connector's tests, for pytest to find, are the rest.
__all__ = [
    "Engine", "connector", "document", "engine", "expected", "fake_driver", "fill", "on_gpu", "server_certs", "two_engines",
]
