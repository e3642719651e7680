"""Names what a request's blocks hold: its prompt, and what computes it."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transload import Prompt

from .adapters import Adapters
from .weights import Weights

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

PREFIX_TOKENS = 256
"""Prefixes that servers ask each other for are multiples of so many tokens, whatever their blocks."""


@dataclass(frozen=True)
class Computed:
    """Names what computes a request. Blocks hold the same only if all of this is the same."""

    weights: str
    adapter: str | None
    """A digest of what the adapter holds."""
    epoch: bytes
    """`Weights.epoch` at that time."""


class Names:
    """Names what computes requests: one for tickets and one for the store, which may have names of their own for weights."""

    def __init__(self, weights: Weights, adapters: Adapters, given: str | None) -> None:
        self._weights, self._adapters, self._given = weights, adapters, given

    def of(self, request: Request) -> Computed:
        """Names what computes a request, as far as that is known now.

        Raises:
            Unnamed: it is not, and nothing that it computes may be taken for anything.
        """
        weights = self._weights.name(self._given)
        return Computed(weights, self._adapters.digest(request.lora_request), self._weights.epoch)

    def is_still(self, adapter: LoRARequest | None, by: Computed) -> bool:
        """Returns whether a request that has ended was computed with the adapter that was named: workers tell after each step."""
        return self._adapters.is_still(adapter, by.adapter)


@dataclass(frozen=True)
class Content:
    """Identifies a request's prompt independently of the model: everything that vLLM's block hashes cover, except the adapter.

    Two requests with the same token ids but another image, salt or embedding are different content, so that the blocks of
    one are never taken for those of the other.
    """

    tokens: list[int]
    media: list[tuple[str, int, int]]
    """Identifier, position and length of each image and the like."""
    salt: str | None
    embeddings: bytes | None

    @classmethod
    def of(cls, request: Request) -> Content:
        """Returns the prompt of a request, as it is now."""
        media = [(each.identifier, each.mm_position.offset, each.mm_position.length) for each in request.mm_features]
        tokens = request.all_token_ids[: request.num_prompt_tokens]
        return cls(tokens, media, request.cache_salt or None, _embeddings(request))

    def lent(self, computed: Computed) -> Prompt:
        """Returns the prompt for a ticket, with the weights in it: the other server compares nothing else."""
        return self._prompt(computed, json.dumps([computed.weights, self.salt or ""]))

    def saved(self, computed: Computed) -> Prompt:
        """Returns the prompt for the archive of these weights."""
        return self._prompt(computed, self.salt)

    def prefixes(self, computed: Computed, most: int) -> dict[int, bytes]:
        """Returns digests of the first tokens, by how many these are: each multiple of `PREFIX_TOKENS` up to `most`, ascending.

        Unlike those of a whole prompt they do not depend on what comes behind, so that other prompts have them too. As with a store,
        clients without a salt share nothing from their first image on, which they may have called by another's name.
        """
        if not self.salt:
            most = min([most, *(position for _, position, _ in self.media)])
        embeddings = self.embeddings and self.embeddings.hex()
        digest = hashlib.blake2b(digest_size=32, person=b"transload-prefix")
        digest.update(_framed([computed.weights, computed.adapter, self.salt, embeddings]))
        prefixes = {}
        for start in range(0, most - PREFIX_TOKENS + 1, PREFIX_TOKENS):
            end = start + PREFIX_TOKENS
            digest.update(array("I", self.tokens[start:end]).tobytes())
            digest.update(_framed([each for each in self.media if start <= each[1] < end]))
            prefixes[end] = digest.copy().digest()
        return prefixes

    def _prompt(self, computed: Computed, salt: str | None) -> Prompt:
        return Prompt(
            self.tokens, adapter=computed.adapter, multimodal=self.media, salt=salt, embeddings=self.embeddings
        )


def _framed(value: Any) -> bytes:
    """Returns a value as bytes that no others begin with."""
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text


def _embeddings(request: Request) -> bytes | None:
    """Returns a digest of the prompt's embeddings: their shape, type and bytes, and which positions they are at."""
    embeddings = request.prompt_embeds
    if embeddings is None:
        return None
    import torch

    digest = hashlib.blake2b(digest_size=32)
    digest.update(f"{tuple(embeddings.shape)} {embeddings.dtype} ".encode())
    digest.update(embeddings.cpu().contiguous().view(torch.uint8).numpy())
    digest.update(repr(request.prompt_is_token_ids).encode())
    return digest.digest()
