"""What parts need that a machine or a pack may not have."""

import sys

from .driver import PACK, NotRun


def torch():
    """Gives torch, which sees a GPU."""
    try:
        import torch
    except ImportError:
        raise NotRun("there is no torch") from None
    if not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA")
    return torch


def package():
    """Has the pack's Python package found by whoever imports it."""
    if not (PACK / "site").is_dir():
        raise NotRun("the pack has no Python package")
    if sys.version_info < (3, 10):
        raise NotRun("the Python package is for Python 3.10 or later")
    sys.path.insert(0, str(PACK / "site"))
