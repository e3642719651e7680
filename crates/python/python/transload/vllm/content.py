"""What a request's blocks hold."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from transload import Prompt

if TYPE_CHECKING:
    from vllm.v1.request import Request


def prompt_of(request: Request, model: str | None = None) -> Prompt:
    """Everything that decides what the blocks of a request's prompt hold: what vLLM's own block hashes cover, and which
    `model` computes them, where that is not known otherwise.

    Two requests with the same token ids but another adapter, image, salt or embedding are different content, so that
    the blocks of one are never taken for those of the other.
    """
    features = [
        (feature.identifier, feature.mm_position.offset, feature.mm_position.length)
        for feature in request.mm_features
    ]
    adapter = request.lora_request
    return Prompt(
        request.all_token_ids[: request.num_prompt_tokens],
        adapter=None if adapter is None else adapter.lora_name,
        multimodal=features,
        salt=request.cache_salt or None if model is None else json.dumps([model, request.cache_salt or ""]),
        embeddings=_embeddings(request),
    )


def _embeddings(request: Request) -> bytes | None:
    """A digest of the prompt's embeddings: their shape, type and bytes, and which positions they are at."""
    embeddings = request.prompt_embeds
    if embeddings is None:
        return None
    import torch

    digest = hashlib.blake2b(digest_size=32)
    digest.update(f"{tuple(embeddings.shape)} {embeddings.dtype} ".encode())
    digest.update(embeddings.cpu().contiguous().view(torch.uint8).numpy())
    digest.update(repr(request.prompt_is_token_ids).encode())
    return digest.digest()
