"""Reports to routers which blocks of prompts a store has, through vLLM's own KV events.

The unit is vLLM's block, with the hash that vLLM's events of the same block in GPU memory have, because that is what routers look up:
they know nothing of token chunks. As vLLM's OffloadingConnector does it, only groups whose layers see everything are told of.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    resolve_block_hashes,
    resolve_kv_cache_block_sizes,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_cache_spec_kind, iter_layer_specs

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

MOST = 10_000
"""The most events kept for vLLM, which takes them with each step. Beyond it the oldest are dropped."""


class Events:
    """Holds events until vLLM takes them."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        _, self._hashed = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        # vLLM 0.33 hashes tokens behind a block with it where drafts depend on them.
        self._ahead = getattr(vllm_config, "num_hash_lookahead_tokens", 0)
        self._groups = [
            (number, group.kv_cache_spec)
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            if all(isinstance(each, FullAttentionSpec) for each in iter_layer_specs(group.kv_cache_spec))
            # Beside states that vLLM does not cache it hashes more tokens at once.
            and group.kv_cache_spec.block_size % self._hashed == 0
        ]
        self._untaken: deque[BlockStored] = deque(maxlen=MOST)

    def of(self, request: Request, start: int, end: int) -> list[BlockStored]:
        """Returns the events to report once the tokens from `start` to `end` of a prompt are stored: one for each group, with the blocks
        that are complete by then."""
        events = []
        for group, spec in self._groups:
            size = spec.block_size
            hashes = resolve_block_hashes(request.block_hashes, self._hashed, size)
            first, last = start // size, min(end // size, len(hashes))
            if first >= last:
                continue
            behind = [(number + 1) * size for number in range(first, last)]
            extra = [generate_block_hash_extra_keys(request, each - size, each + self._ahead, 0)[0] for each in behind]
            fields = {
                "block_hashes": [maybe_convert_block_hash(hashes[number]) for number in range(first, last)],
                "parent_block_hash": maybe_convert_block_hash(hashes[first - 1]) if first else None,
                "token_ids": request.all_token_ids[first * size : last * size],
                "block_size": size,
                "lora_id": request.lora_request.adapter_id if request.lora_request else None,
                "lora_name": request.lora_request.name if request.lora_request else None,
                "medium": MEDIUM_STORAGE,
                "extra_keys": to_event_extra_keys(extra),
                "group_idx": group,
                "kv_cache_spec_kind": get_kv_cache_spec_kind(spec).value,
            }
            if self._ahead:
                fields["lookahead_token_ids"] = [request.all_token_ids[each : each + self._ahead] for each in behind]
            events.append(BlockStored(**fields))
        return events

    def tell(self, events: list[BlockStored]) -> None:
        self._untaken.extend(events)

    def take(self) -> list[BlockStored]:
        """Returns the events that have not been taken yet."""
        taken = list(self._untaken)
        self._untaken.clear()
        return taken
