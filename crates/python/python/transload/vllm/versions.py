"""Names the versions of vLLM that tests run with. Others are used as far as they have what this connector needs of them."""

from __future__ import annotations

import logging
import re

import vllm

TESTED = ((0, 32), (0, 33))
NAMED = " and ".join(f"{major}.{minor}" for major, minor in TESTED)


def check() -> None:
    """Warns of a version that nothing was run with."""
    version = getattr(vllm, "__version__", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return
    found = (int(numbers[1]), int(numbers[2]))
    # Builds of a source tree without its history call themselves 0.0 or 0.1.dev.
    if found >= (0, 2) and found not in TESTED:
        logging.getLogger("vllm." + __name__).warning(
            "TransloadConnector is tested with vLLM %s; nothing was run with this version, %s: what it lacks is told below, and what it "
            "adds to caches is refused",
            NAMED,
            version,
        )


def lacking(error: ImportError) -> ImportError:
    """Returns what to raise where a name of vLLM's that there has to be is missing."""
    if not (error.name or "").startswith("vllm"):
        return error
    return ImportError(
        f"TransloadConnector cannot work with vLLM {getattr(vllm, '__version__', '')} ({error}): it is tested with vLLM {NAMED}; install "
        "one of those, or another version of transload"
    )
