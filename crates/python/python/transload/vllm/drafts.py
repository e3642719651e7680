"""Distinguishes layers that draft tokens from those of the model, which checks the drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.models.utils import extract_layer_index

from .specs import layers

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_OWN_NAMES = {"draft_model", "mtp"}
"""Parts of layers' names that only drafts have."""


def drafting(vllm_config: VllmConfig, names: list[str]) -> set[str]:
    """Returns which of these layers draft tokens.

    vLLM 0.33 marks them. In 0.32 names tell: layers of drafts have a name of their own, or are numbered behind those of the model. A layer of
    the model that is taken for one of drafts is still moved, or the load refused: what is no draft to both sides, or what both have, is never
    left out.
    """
    if vllm_config.speculative_config is None:
        return set()
    known, total = layers(vllm_config), vllm_config.model_config.get_total_num_hidden_layers()
    return (
        {name for name in names if getattr(known.get(name), "is_draft_layer", False)}
        or {name for name in names if _OWN_NAMES & {*name.split(".")}}
        or {name for name in names if extract_layer_index(name) >= total}
    )


class OfDrafts:
    """A configuration of vLLM's in which the model is that of the drafts."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._vllm_config = vllm_config
        self.model_config = vllm_config.speculative_config.draft_model_config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vllm_config, name)


def numbered(vllm_config: VllmConfig, names: list[str], drafts: set[str]) -> dict[str, int]:
    """Returns the number of each layer. Those of drafts follow the model's: vLLM begins with 0 for some, and for others with the number of
    layers of a pipeline stage."""
    config = vllm_config.model_config.hf_text_config
    numbers = {name: extract_layer_index(name) for name in names}
    if config.model_type == "falcon_h1":
        # It names the recurrent part of layer i of n as if it were layer n + i.
        numbers = {name: number % config.num_hidden_layers for name, number in numbers.items()}
    if drafts:
        total, behind = vllm_config.model_config.get_total_num_hidden_layers(), sorted({numbers[name] for name in drafts})
        numbers |= {name: total + behind.index(numbers[name]) for name in drafts}
    return numbers
