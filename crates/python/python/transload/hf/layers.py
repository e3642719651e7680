"""Describes what the layers of a transformers cache hold. It is read off the cache object itself, never off a model's name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, cache_utils

from .. import Archive, Deployment, Memory
from .errors import UnsupportedCache

CHUNK = Archive.TOKENS
DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
KEEPS = {
    "DynamicLayer": ("rows",),
    "DynamicSlidingWindowLayer": ("rows",),
    "LinearAttentionLayer": ("states",),
    "LinearAttentionAndFullAttentionLayer": ("rows", "states"),
    "LinearAttentionAndSlidingWindowAttentionLayer": ("rows", "states"),
    "DummyLayer": (),
}
"""Layers of each known class keep these: rows of each token (keys and values; MLA's latent and its rotated part stand as these),
and states of all tokens. A `DummyLayer` looks into the cache of another one."""


@dataclass(frozen=True)
class Part:
    """One tensor of a layer's cache."""

    attribute: str
    """`keys` and `values`, or `conv_states` and `recurrent_states`, of which a layer may have several."""
    number: int
    shape: tuple[int, ...]
    """`[H, D]` of a token's row, or a whole state."""
    dtype: torch.dtype

    def of(self, layer: Any) -> torch.Tensor:
        """Returns the tensor, with its batch."""
        found = getattr(layer, self.attribute)
        return found[self.number] if isinstance(found, dict) else found


@dataclass(frozen=True)
class Group:
    """Describes layers that cache the same."""

    name: str
    specs: list[dict[str, Any]]
    """Specs of a deployment document."""
    parts: list[Part]
    layers: list[int]

    @property
    def is_recurrent(self) -> bool:
        """Returns whether a layer keeps one state for any number of tokens."""
        return self.specs[0]["kind"] != "attention"

    @property
    def is_windowed(self) -> bool:
        """Returns whether a layer keeps the last rows only."""
        return not self.specs[0].keys().isdisjoint(("sliding_window", "chunk_size"))

    def held(self, end: int) -> tuple[int, int]:
        """Returns the first token whose row a layer has after `end` tokens, and the first that it needs to go on."""
        if chunk := self.specs[0].get("chunk_size"):
            return max(0, end - chunk + 1), end // chunk * chunk
        window = self.specs[0].get("sliding_window", end + 1)
        return (max(0, end - window + 1),) * 2


@dataclass(frozen=True)
class Copy:
    """Holds tensors in the host's memory that an archive restores into and saves from, for each group and each of its layers."""

    deployment: Deployment
    memories: list[Memory]
    tables: list[list[int]]
    tensors: list[list[list[torch.Tensor]]]
    start: int
    end: int


class Layers:
    """Describes the layers of a model's cache."""

    def __init__(self, cache: Cache, layer_types: list[str] | None) -> None:
        """Reads a `cache` that the model has put a token into. `layer_types` are those of its config, which alone tell chunked
        layers from sliding ones.

        Raises:
            UnsupportedCache: a layer is of a class that is not known here, or none holds anything.
        """
        self.groups: list[Group] = []
        self.devices: dict[int, torch.device] = {}
        for number, layer in enumerate(cache.layers):
            is_chunked = bool(layer_types) and layer_types[number] == "chunked_attention"
            for name, specs, parts in _describe(number, layer, is_chunked):
                self.devices[number] = parts[0].of(layer).device
                same = [group for group in self.groups if (group.specs, group.parts) == (specs, parts)]
                if not same:
                    alike = 1 + sum(group.name.split("-")[0] == name for group in self.groups)
                    same = [Group(name if alike == 1 else f"{name}-{alike}", specs, parts, [])]
                    self.groups += same
                same[0].layers.append(number)
        if not self.groups:
            raise UnsupportedCache("this model puts nothing into a DynamicCache")

    @property
    def forget(self) -> bool:
        """Returns whether any layer loses what is needed to continue after fewer tokens."""
        return any(group.is_recurrent or group.is_windowed for group in self.groups)

    @property
    def have_states(self) -> bool:
        """Returns whether some layer keeps a state."""
        return any(group.is_recurrent for group in self.groups)

    @property
    def are_states(self) -> bool:
        """Returns whether no layer keeps rows: such a cache does not count its tokens."""
        return all(group.is_recurrent for group in self.groups)

    def copy(self, end: int, start: int = 0) -> Copy:
        """Makes room for the rows from `start` to `end`, whole token chunks, and for all else that is needed to go on at `end`."""
        documents, tables, tensors, memories = [], [], [], []
        for group in self.groups:
            document: dict[str, Any] = {"num_blocks": 1} | ({"order": "LB"} if len(group.specs) > 1 else {})
            rows, table = 0, [0]
            if not group.is_recurrent:
                first, needed = group.held(end) if group.is_windowed else (start, start)
                # Where rows are cut at any token, a block is one.
                size = 1 if group.is_windowed else CHUNK
                rows = max(1, end - first)
                table = [-1] * (needed // size) + list(range((needed - first) // size, (end - first) // size))
                document = {"num_blocks": rows // size, "block_size": size, "order": "L[HBSD,HBSD]"}
            layers = ",".join(map(str, group.layers))
            named = {"name": group.name, "layers": layers, "spec": group.specs, "allocation": "per_layer"}
            documents.append(document | named)
            shapes = [part.shape if not rows else (part.shape[0], rows, part.shape[1]) for part in group.parts]
            sizes = [math.prod(shape) * part.dtype.itemsize for shape, part in zip(shapes, group.parts)]
            # The model masks rows that are not restored, but computes with them: they must not be NaN.
            buffers = [torch.zeros(sum(sizes), dtype=torch.uint8) for _ in group.layers]
            tables.append(table)
            memories.append(Memory(buffers))
            tensors.append([
                [piece.view(part.dtype).view(shape) for piece, part, shape in zip(buffer.split(sizes), group.parts, shapes)]
                for buffer in buffers
            ])  # fmt: skip
        document = {"schema": "transload.deployment/1", "name": "transformers", "group": documents}
        return Copy(Deployment(document), memories, tables, tensors, start, end)

    def gather(self, cache: Cache, copy: Copy, row: int = 0) -> None:
        """Fills a copy out of one row of a cache's batch. Layers that forget have to be after `copy.end` tokens."""
        for group, number, tensors in self._layers(copy):
            for part, tensor in zip(group.parts, tensors):
                found = part.of(cache.layers[number])[row]
                if group.is_windowed:
                    found = found[:, -tensor.shape[1] :]
                elif not group.is_recurrent:
                    found = found[:, copy.start : copy.end]
                tensor.copy_(found)

    def fill(self, cache: Cache, copy: Copy, batch: int = 1, tokens: int | None = None) -> None:
        """Puts a copy into each row of an empty cache: all its tokens, or fewer where no layer forgets."""
        tokens = copy.end if tokens is None else tokens
        for group, number, tensors in self._layers(copy):
            layer = cache.layers[number]
            every = [tensor.expand(batch, *tensor.shape).to(self.devices[number]) for tensor in tensors]
            if group.is_recurrent:
                for part, tensor in zip(group.parts, every):
                    put = layer.update_conv_state if part.attribute == "conv_states" else layer.update_recurrent_state
                    put(tensor, state_idx=part.number)
                continue
            keys, values = (tensor[:, :, :tokens] for tensor in every)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if group.is_windowed:
                layer.cumulative_length = tokens

    def _layers(self, copy: Copy) -> list[tuple[Group, int, list[torch.Tensor]]]:
        pairs = zip(self.groups, copy.tensors)
        return [(group, *layer) for group, tensors in pairs for layer in zip(group.layers, tensors)]


def _describe(number: int, layer: Any, is_chunked: bool) -> list[tuple[str, list[dict[str, Any]], list[Part]]]:
    """Describes the rows and the states of one layer: the kind's name, specs and parts of each."""
    found, name = [], type(layer).__name__
    if type(layer) is not getattr(cache_utils, name, None) or name not in KEEPS:
        raise UnsupportedCache(f"layer {number}: a cache of {name} cannot be saved")
    # One that looks into another's cache puts nothing into its own.
    if "rows" in KEEPS[name] and layer.is_initialized:
        tensors = {"keys": layer.keys, "values": layer.values}
        parts = [Part(each, 0, tuple(tensor.shape[1::2]), tensor.dtype) for each, tensor in tensors.items()]
        (heads, head_dim), (_, v_head_dim) = parts[0].shape, parts[1].shape
        spec = {"kind": "attention", "heads": heads, "head_dim": head_dim, "dtype": _dtype(parts[0].dtype, number)}
        if v_head_dim != head_dim:
            spec["v_head_dim"] = v_head_dim
        kind, window = "attention", getattr(layer, "sliding_window", None)
        if window is not None:
            kind, field = ("chunked", "chunk_size") if is_chunked else ("sliding", "sliding_window")
            spec[field] = window
        found.append((kind, [spec], parts))
    if "states" in KEEPS[name]:
        parts = [
            Part(attribute, each, tuple(tensor.shape[1:]), tensor.dtype)
            for attribute in ("conv_states", "recurrent_states")
            for each, tensor in getattr(layer, attribute).items()
            if tensor is not None
        ]
        found.append(("states", [_state(part, number) for part in parts], parts))
    return [each for each in found if each[2]]


def _state(part: Part, number: int) -> dict[str, Any]:
    dtype, shape = _dtype(part.dtype, number), part.shape
    if part.attribute == "conv_states" and len(shape) == 2:
        # transformers keep a tap more than they need.
        return {"kind": "mamba1_conv", "d_inner": shape[0], "conv_kernel": shape[1] + 1, "conv_layout": "DS", "dtype": dtype}
    if part.attribute == "recurrent_states" and len(shape) == 2:
        raise UnsupportedCache(
            f"layer {number} keeps a state of Mamba 1: behind one transformers does not compute what it computes without"
        )
    if part.attribute == "recurrent_states" and len(shape) == 3:
        return {"kind": "linear", "heads": shape[0], "head_dim": shape[1], "v_head_dim": shape[2], "dtype": dtype}
    raise UnsupportedCache(f"layer {number}: {part.attribute} of shape {list(shape)} cannot be saved")


def _dtype(dtype: torch.dtype, number: int) -> str:
    if dtype not in DTYPES:
        raise UnsupportedCache(f"layer {number}: elements of {dtype} cannot be saved")
    return DTYPES[dtype]
