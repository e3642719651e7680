"""Tells whether caches can be in the memory of NVIDIA GPUs here.

Memory of a GPU goes where memory of the host does (`transload.Memory`), and a `transload.Mark` says what has to be done
before it is touched. This module can be imported everywhere.
"""

from ._transload import cuda_available as available

__all__ = ["available"]
