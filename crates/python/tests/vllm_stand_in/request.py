"""A request (vllm/v1/request.py)."""

import itertools
from types import SimpleNamespace

from . import vllm_names as vllm

_numbers = itertools.count()
_adapters: dict[str, int] = {}


def _number(adapter):
    """vLLM's number of an adapter."""
    return _adapters.setdefault(adapter, len(_adapters) + 1)


class Request:
    def __init__(self, tokens, params=None, *, max_tokens=1, adapter=None, salt=None, images=(), logprobs=False,
                 embeddings=None, request_id=None):  # fmt: skip
        self.request_id = request_id or f"request-{next(_numbers)}"
        self.prompt_token_ids = None if embeddings is not None else list(tokens)
        self._all_token_ids = list(tokens)
        self.num_prompt_tokens = len(self._all_token_ids)
        self.num_computed_tokens = 0
        self.max_tokens = max_tokens
        self.kv_transfer_params = params
        self.status = vllm.RequestStatus.WAITING
        self.preempted, self.resumable = False, False
        # Steps are not overlapped here.
        self.num_in_flight_tokens = 0
        self.lora_request = vllm.LoRARequest(adapter, _number(adapter), f"/{adapter}") if isinstance(adapter, str) else adapter
        self.cache_salt = salt
        self.mm_features = [
            SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))
            for name, offset, length in images
        ]
        self.prompt_embeds, self.prompt_is_token_ids = embeddings, None
        self._logprobs = logprobs

    @property
    def all_token_ids(self):
        return self._all_token_ids

    @property
    def num_tokens(self):
        return len(self._all_token_ids)

    @property
    def finished(self):
        return self.status >= vllm.RequestStatus.FINISHED_STOPPED

    def get_skip_reading_prefix_cache(self):
        return self._logprobs

    def sample(self, token):
        self._all_token_ids.append(token)
