"""Names the versions of vLLM that tests run with. Others are used as far as they have what this connector needs of them."""

from __future__ import annotations

import logging
import re

import vllm

TESTED = ((0, 32), (0, 33))
NAMED = " and ".join(f"{major}.{minor}" for major, minor in TESTED)


def check() -> None:
    """Warns of a version that nothing was run with."""
    found = number()
    # Builds of a source tree without its history call themselves 0.0 or 0.1.dev.
    if found is not None and found >= (0, 2) and found not in TESTED:
        logging.getLogger("vllm." + __name__).warning(
            "TransloadConnector is tested with vLLM %s; nothing was run with this version, %s: what it lacks is told below, and what it "
            "adds to caches is refused",
            NAMED,
            vllm.__version__,
        )


def number() -> tuple[int, int] | None:
    """Returns the first two numbers of vLLM's version; None if it has none."""
    numbers = re.match(r"(\d+)\.(\d+)", getattr(vllm, "__version__", ""))
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def lacking(error: ImportError) -> ImportError:
    """Returns the error to raise if a required name of vLLM's is missing."""
    if not (error.name or "").startswith("vllm"):
        return error
    return ImportError(
        f"TransloadConnector cannot work with vLLM {getattr(vllm, '__version__', '')} ({error}): it is tested with vLLM {NAMED}; install "
        "one of those, or another version of transload"
    )
