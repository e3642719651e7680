"""Refuses versions of vLLM that this connector does not know."""

from __future__ import annotations

import logging
import re

import vllm

OLDEST, NEXT = (0, 32), (0, 34)
"""Versions from the first on, and before the second. Tests run with 0.32; of 0.33 the names and signatures were compared."""
TESTED = (0, 32)


def check() -> None:
    """Refuses versions whose interfaces are not those that this connector was written for.

    Raises:
        ImportError: it names the versions that will do.
    """
    version = getattr(vllm, "__version__", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return
    found = (int(numbers[1]), int(numbers[2]))
    # Builds of a source tree without its history call themselves 0.0 or 0.1.dev.
    if found < (0, 2):
        return
    if not OLDEST <= found < NEXT:
        raise ImportError(
            f"TransloadConnector is for vLLM {_name(OLDEST)} to {_name((NEXT[0], NEXT[1] - 1))}, and this is {version}: "
            "install one of those, or another version of transload"
        )
    if found != TESTED:
        logging.getLogger("vllm." + __name__).warning(
            "TransloadConnector is tested with vLLM %s; of this version, %s, only names and signatures were compared",
            _name(TESTED),
            version,
        )


def _name(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
