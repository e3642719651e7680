"""Restores the beginnings of prompts for transformers from a store, so that a model computes them once::

    from transload.hf import Reuse

    reuse = Reuse(model, "file:///var/kv", name="demo")
    reuse.attach()
    model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=64)
"""

from .errors import NotReused, UnsupportedCache
from .layers import Layers
from .report import Report
from .reuse import Reuse

__all__ = ["Layers", "NotReused", "Report", "Reuse", "UnsupportedCache"]
