"""Reuse of prompts' beginnings for transformers: what a model has computed once is restored from a store::

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
