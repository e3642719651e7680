"""Keeps the pages of SGLang's hierarchical cache (HiCache) in any store of Transload.

SGLang loads `Storage` by its name: ``--hicache-storage-backend dynamic``, and in ``--hicache-storage-backend-extra-config``
``"module_path": "transload.sglang", "class_name": "Storage"``. The guide has the whole command line.
"""

from .storage import Storage

__all__ = ["Storage"]
