"""Describes how vLLM lays its cache out. It is read off the tensors that vLLM registers, never off the names of layouts."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable

import torch
from transload import Deployment, Mark, Memory
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

from .drafts import OfDrafts, drafting, numbered
from .messages import NULL_BLOCK, Blocks
from .specs import Layer, UnsupportedCache, describe
from .windows import refuse_narrow_sharing

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm." + __name__)

MarkOnce = Callable[[], "Mark | None"]
"""Calls `Cache.mark` once, and returns that mark from then on: all blocks of a part of a step wait for the same."""


@dataclass(frozen=True)
class Group:
    layer: Layer
    """The content of each layer's cache."""
    source: int
    """The number of vLLM's cache group whose block tables it has."""
    split: int
    """The number of kernel blocks in each of the manager's blocks. vLLM's block tables count the manager's."""
    step: int
    """Blocks of the kernels from one of the manager's to the next: more than `split` where pages of other layers lie between them."""
    block_size: int
    """Tokens of one of the manager's blocks, on all ranks together that they are dealt out to."""
    tensors: list[torch.Tensor]
    """The cache of each layer, by block of the kernels."""

    def table(self, blocks: list[int], tokens: int) -> list[int]:
        """Returns the block table of a request with this many tokens, in the deployment's blocks."""
        if self.layer.is_ring:
            # A ring has one block. The needed tokens lie between two multiples of its size, so that block is the last entry.
            return [-1] * (-(-tokens // self.block_size) - 1) + [block or -1 for block in blocks]
        if self.layer.recurrent:
            # The running state is in the last block that is not for drafts; before it are superseded states.
            state = blocks[len(blocks) - 1 - min(self.layer.scratch, len(blocks) - 1)] if blocks else NULL_BLOCK
            return [-1 if state == NULL_BLOCK else state]
        return [
            -1 if block == NULL_BLOCK else block * self.step + part for block in blocks for part in range(self.split)
        ]


@dataclass(frozen=True)
class Cache:
    """The cache of one rank."""

    deployment: Deployment
    groups: list[Group]
    memories: list[Memory]
    device: torch.device
    is_cleared: bool
    """Whether blocks are zeroed before they are filled: groups of different kinds share memory, and what is a number to
    one of them need not be to another."""

    @property
    def is_asynchronous(self) -> bool:
        """Returns whether vLLM says that a step is over when it has submitted it. A GPU does it later."""
        return self.device.type != "cpu"

    @property
    def writes_after_step(self) -> bool:
        """Returns whether a step of vLLM's may submit more that writes to blocks behind what it calls its end. With recurrent
        states the runner of 0.33 does: it moves them to where a block ends when it knows how many tokens it has sampled."""
        return self.is_asynchronous and any(group.layer.recurrent for group in self.groups)

    def mark(self) -> Mark | None:
        """Marks the end of what has been submitted on the stream that the model runs on, which has to be done before blocks are
        read or written. That is the stream of the thread in which vLLM calls the connector. None for host memory: there it is done.

        Raises:
            CudaError: the GPU is lost.
        """
        return Mark(torch.cuda.current_stream(self.device)) if self.is_asynchronous else None

    def mark_once(self) -> MarkOnce:
        """Returns one mark for a part of a step, which is made when it is first asked for."""
        return functools.cache(self.mark)

    def tables(self, blocks: Blocks, tokens: int) -> list[list[int]]:
        """Returns the block table of each group of the deployment, for a request with this many tokens."""
        return [group.table(blocks[group.source], tokens) for group in self.groups]

    def clear(self, blocks: Blocks, start: int, tokens: int) -> None:
        """Zeroes the blocks that a load of these tokens fills in part. vLLM leaves them to whoever loads; its kernels
        multiply what is behind the last token by 0, which is no 0 where it is no number. Of drafts all blocks are zeroed, since the other
        side may not have any, and what is in them is another request's. On a GPU this is submitted, and has to
        be before the mark that the load waits for."""
        for group in self.groups:
            layer = group.layer
            if not layer.draft and (layer.recurrent or not self.is_cleared):
                continue
            # Before the first one that begins here may be tokens that are cached.
            first, last = (-(-token // group.block_size) for token in (start, start + tokens))
            table = blocks[group.source]
            if not (layer.recurrent or layer.is_ring):
                table = table[first:last]
            filled = [block for block in group.table(table, start + tokens) if block >= 0]
            if not layer.draft:
                filled = filled[: group.split] + filled[-group.split :]
            for begin, end in _runs(filled):
                for tensor in group.tensors:
                    tensor[begin:end].zero_()


def read(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    kv_caches: dict[str, torch.Tensor],
    name: str,
) -> Cache:
    """Describes the registered tensors, and registers their memory.

    Raises:
        UnsupportedCache: the connector does not know how to read them.
    """
    refuse_narrow_sharing(vllm_config)
    parallel = vllm_config.parallel_config
    dcp = parallel.decode_context_parallel_size
    here = _of_this_stage(vllm_config, kv_cache_config, kv_caches)
    stages = _of_all_stages([part for part, _, _ in here])
    stage = get_pp_group().rank_in_group
    documents, groups, memories, members, kinds = [], [], [], [], {}
    for parts in _by_group(stages):
        first = next(part for part in parts if part is not None)
        layer = first.layer
        kind = f"draft-{layer.kind}" if layer.draft else layer.kind
        kinds[kind] = number = kinds.get(kind, 0) + 1
        documents.append(
            {
                "name": kind if number == 1 else f"{kind}-{number}",
                "layers": ",".join(str(each) for part in parts if part is not None for each in part.layers),
                "spec": layer.specs,
            }
            | ({"draft": True} if layer.draft else {})
            | _common(parts)
        )
        if not layer.recurrent:
            documents[-1]["block_size"] = first.block_size // first.split
            if dcp > 1 and not first.is_dealt:
                documents[-1]["tokens"] = "whole"
        part = parts[stage]
        _, tensors, memory = (None, [], Memory([])) if part is None else here[stages[stage].index(part)]
        step = first.split if part is None else part.step
        tokens = first.block_size * (dcp if first.is_dealt else 1)
        groups.append(Group(layer, first.source, first.split, step, tokens, tensors))
        memories.append(memory)
        members.append(dict(zip(part.layers, tensors)) if part is not None else {})
    document: dict[str, Any] = {
        "schema": "transload.deployment/1",
        "name": name,
        "model": vllm_config.model_config.served_model_name or "",
        "tp": parallel.tensor_parallel_size,
        "group": documents,
    }
    if len(stages) > 1:
        document |= {"pp": len(stages), "pp_layers": _layers_of_stages(stages)}
    if dcp > 1:
        document |= {"dcp": dcp, "interleave": parallel.cp_kv_cache_interleave_size}
        _tell_of_short_chunks(document, stage == get_tp_group().rank_in_group == 0)
    deployment = Deployment(document)
    rank = stage * parallel.tensor_parallel_size + get_tp_group().rank_in_group
    _compare(deployment, rank, members)
    devices = {str(tensor.device): tensor.device for tensor in kv_caches.values()}
    if len(devices) > 1:
        raise UnsupportedCache(f"the cache lies on several devices: {', '.join(sorted(devices))}")
    (device,) = devices.values()
    return Cache(deployment, groups, memories, device, kv_cache_config.needs_kv_cache_zeroing)


@dataclass(frozen=True)
class _Part:
    """The share of a deployment's group that one pipeline stage has."""

    source: int
    layer: Layer
    layers: tuple[int, ...]
    location: dict[str, Any]
    split: int
    step: int
    block_size: int
    is_dealt: bool
    """Whether its tokens are dealt out to the ranks of decode context parallelism."""


def _tell_of_short_chunks(document: dict[str, Any], is_first: bool) -> None:
    """Says once how the tokens could be dealt out that are moved in pieces of less than a block."""
    stripe = document["interleave"]
    longest = math.gcd(*(group["block_size"] for group in document["group"] if "block_size" in group and "tokens" not in group))
    if is_first and stripe < longest:
        logger.warning(
            "tokens are dealt out %d at a time to the ranks of context parallelism, and are moved in chunks of that many at most: "
            "--cp-kv-cache-interleave-size %d makes them as long as blocks, if the attention backend supports that",
            stripe,
            longest,
        )


def _of_this_stage(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, kv_caches: dict[str, torch.Tensor]
) -> list[tuple[_Part, list[torch.Tensor], Memory]]:
    """Returns the groups of this stage's layers, each with its tensors and their memory."""
    dcp = vllm_config.parallel_config.decode_context_parallel_size
    moved = [(source, group) for source, group in enumerate(kv_cache_config.kv_cache_groups) if group.enable_kv_transfer]
    names_there = [name for _, group in moved for name in group.layer_names if name in kv_caches]
    drafts = drafting(vllm_config, names_there)
    layer_numbers = numbered(vllm_config, names_there, drafts)
    found = []
    for source, group in moved:
        spec = group.kv_cache_spec
        for layer, names in _groups_of(vllm_config, group, kv_caches, layer_numbers, drafts):
            tensors = [kv_caches[each] for each in names]
            if layer.alike:
                tensors = [_pages(tensor, kv_cache_config.num_blocks, each) for tensor, each in zip(tensors, names)]
            split = step = _blocks_of_kernels(tensors[0], kv_cache_config.num_blocks, names[0])
            if split == 1 and (kernel := _kernel_block(layer, spec.block_size, names[0])) < spec.block_size:
                split = spec.block_size // kernel
                tensors, step = _in_kernel_blocks(tensors, split, names[0])
            location, memory = _locate(tensors, names, layer, are_between=step > split)
            numbers = tuple(layer_numbers[name] for name in names)
            is_dealt = dcp > 1 and spec.dcp_sharded
            found.append((_Part(source, layer, numbers, location, split, step, spec.block_size, is_dealt), tensors, memory))
    return found


def _of_all_stages(own: list[_Part]) -> list[list[_Part]]:
    """Collects a value from each stage. All stages must call this."""
    group = get_pp_group()
    if group.world_size == 1:
        return [own]
    found: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(found, own, group=group.cpu_group)
    return found


def _by_group(stages: list[list[_Part]]) -> list[list[_Part | None]]:
    """Returns the groups of the deployment, each with the part that every stage has of it, or None; in the order of one stage that had
    all layers."""
    groups: list[list[_Part | None]] = []
    for stage, parts in enumerate(stages):
        for part in parts:
            for group in groups:
                of = next(each for each in group if each is not None)
                # Caches of one kind that lie otherwise on this stage are another group on every stage.
                if group[stage] is None and (of.source, of.layer) == (part.source, part.layer):
                    group[stage] = part
                    break
            else:
                groups.append([part if each == stage else None for each in range(len(stages))])
    return sorted(groups, key=lambda group: min((part.source, part.layers[0]) for part in group if part is not None))


def _common(parts: list[_Part | None]) -> dict[str, Any]:
    """Returns the place of a group's blocks, for all stages or for each.

    Raises:
        UnsupportedCache: stages differ in what has to be alike on all.
    """
    there = [(stage, part) for stage, part in enumerate(parts) if part is not None]
    most = max(there, key=lambda each: len(each[1].layers))[1]
    first = most.location
    for stage, part in there:
        for name in ("num_blocks", "allocation", "order"):
            found, wanted = part.location.get(name), first.get(name)
            if len(part.layers) == 1 and name != "num_blocks":
                # It does not show where others would be.
                found, wanted = (each["order"].replace("L", "") for each in (part.location, first))
            if found != wanted:
                raise UnsupportedCache(
                    f"stage {stage} has {name} {found!r} for its layers {part.layers}, and another has {wanted!r}: that cannot be described"
                )
    # A stage that leaves a field out is not described by it: it has one layer, or none.
    fields = {name: [(part or most).location.get(name, first.get(name)) for part in parts] for name in _BY_STAGE}
    differ = {name: values for name, values in fields.items() if len({*values}) > 1}
    common = {name: value for name, value in first.items() if name not in differ}
    if differ:
        stages = [zip(differ, values) for values in zip(*differ.values())]
        common["stage"] = [{name: value for name, value in stage if value is not None} for stage in stages]
    return common


_BY_STAGE = ("offset", "block_stride", "layer_stride")
"""Fields of a group's document that each stage may have of its own."""


def _layers_of_stages(stages: list[list[_Part]]) -> list[int]:
    """Returns the number of layers of each stage, counted up to its last layer with a cache."""
    counts, end = [], 0
    for stage, parts in enumerate(stages):
        numbers = [number for part in parts for number in part.layers]
        if numbers and min(numbers) < end:
            raise UnsupportedCache(
                f"stage {stage} caches layer {min(numbers)}, and a stage before it layer {end - 1}: pipeline stages whose layers are not "
                "numbered in their order cannot be described yet"
            )
        last = max(numbers, default=end - 1) + 1
        counts.append(last - end)
        end = last
    return counts


def _runs(blocks: list[int]) -> list[tuple[int, int]]:
    """Returns the runs of blocks that are neighbours in memory."""
    runs: list[tuple[int, int]] = []
    for block in sorted({*blocks}):
        if runs and runs[-1][1] == block:
            runs[-1] = runs[-1][0], block + 1
        else:
            runs.append((block, block + 1))
    return runs


def _groups_of(
    vllm_config: VllmConfig, group: Any, kv_caches: dict[str, Any], numbers: dict[str, int], drafts: set[str]
) -> list[tuple[Layer, list[str]]]:
    """Returns the layers of one of vLLM's groups by the content of their caches, in the order of their numbers."""
    found: list[tuple[Layer, list[str]]] = []
    seen = set()
    for name in sorted(filter(numbers.__contains__, group.layer_names), key=numbers.__getitem__):
        tensor = kv_caches[name]
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedCache(f"layer {name}: its cache is a {type(tensor).__name__}, not one tensor")
        if tensor.device.type not in ("cpu", "cuda"):
            raise UnsupportedCache(
                f"layer {name}: its cache is on {tensor.device}; caches are moved in memory of the host and of NVIDIA GPUs"
            )
        # Layers that share another's cache.
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        spec = group.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = spec.kv_cache_specs[name]
        draft = name in drafts
        layer = replace(describe(OfDrafts(vllm_config) if draft else vllm_config, spec, name), draft=draft)
        if layer.alike:
            layer = _named_by_all(layer, tensor, name)
        for other, names in found:
            if other == layer and kv_caches[names[0]].stride() == tensor.stride():
                names.append(name)
                break
        else:
            found.append((layer, [name]))
    for layer, names in found:
        if layer.alike and get_tp_group().rank_in_group == 0:
            logger.warning(
                "how the blocks of %d layers like %s are ordered is not known here: they are moved whole, as %s, between servers that are alike "
                "in TP, block size and all of this: %s",
                len(names),
                names[0],
                layer.kind,
                ", ".join(f"{key} {value}" for key, value in layer.alike),
            )
        if len({numbers[name] for name in names}) < len(names):
            raise UnsupportedCache(f"layers {', '.join(names)}: several caches of one layer cannot be told apart")
    return found


def _named_by_all(layer: Layer, tensor: torch.Tensor, name: str) -> Layer:
    """Names a layer by everything that must be equal on both servers, so that others are refused.

    Raises:
        UnsupportedCache: it drafts. Which part of a prompt is moved would depend on it, and the other server need not have it.
    """
    if layer.draft:
        raise UnsupportedCache(f"layer {name}: how blocks of these drafts are ordered is not known here")
    computes = torch.cuda.get_device_capability(tensor.device) if tensor.device.type == "cuda" else platform.machine()
    alike = layer.alike + (("block", f"{tuple(tensor.shape[1:])} {tensor.stride()[1:]}"), ("device", f"{tensor.device.type} {computes}"))
    digest = hashlib.blake2b(repr(sorted(alike)).encode(), digest_size=6).hexdigest()
    return replace(layer, kind=f"{layer.kind}-{digest}", alike=alike)


def _pages(tensor: torch.Tensor, num_blocks: int, name: str) -> torch.Tensor:
    """Returns a layer's bytes, by block of the manager.

    Raises:
        UnsupportedCache: a block is not in one piece.
    """
    split, size = _blocks_of_kernels(tensor, num_blocks, name), tensor.element_size()
    axes = sorted((stride * size, extent) for stride, extent in zip(tensor.stride()[1:], tensor.shape[1:]) if extent > 1)
    step = tensor.stride(0) * size
    if split > 1:
        axes.append((step, split))
    page = size
    for stride, extent in axes:
        if stride != page:
            raise UnsupportedCache(f"layer {name}: a block is not in one piece, and how it is ordered is not known here")
        page *= extent
    return _storage_from(tensor).as_strided((num_blocks, 1, 1, page), (step * split, page, page, 1))


def _locate(
    tensors: list[torch.Tensor], names: list[str], layer: Layer, *, are_between: bool
) -> tuple[dict[str, Any], Memory]:
    """Returns where the layers' blocks are: fields of a group's document, and the memory they are in. `are_between`: other layers' blocks
    are between those of one."""
    first = tensors[0]
    storage = first.untyped_storage()
    starts = [tensor.data_ptr() - storage.data_ptr() for tensor in tensors]
    one = all(tensor.untyped_storage().data_ptr() == storage.data_ptr() for tensor in tensors)
    steps = {after - before for before, after in zip(starts, starts[1:])}
    layer_stride = next(iter(steps), None)
    size = first.element_size()
    block_stride = first.stride(0) * size
    location: dict[str, Any] = {"num_blocks": first.shape[0], "block_stride": block_stride}
    if one and len(steps) <= 1 and (layer_stride is None or layer_stride > 0 and not are_between):
        memory = Memory([storage])
        location["offset"] = starts[0]
        if layer_stride is not None:
            location["layer_stride"] = layer_stride
    else:
        memory = Memory([_storage_from(tensor) for tensor in tensors])
        location["allocation"] = "per_layer"
        layer_stride = None
    strides = {"B": block_stride, "H": first.stride(1) * size, "S": first.stride(2) * size, "C": size}
    extents = dict(zip("BHS", first.shape)) | {"C": 1}
    if layer_stride is not None:
        strides["L"], extents["L"] = layer_stride, len(tensors)
    if first.stride(3) != 1:
        raise UnsupportedCache(f"layer {names[0]}: the elements of a state are not neighbours in memory")
    location["order"] = _order(strides, extents, first.shape[3] * size, layer, names[0])
    return location, memory


def _order(strides: dict[str, int], extents: dict[str, int], content: int, layer: Layer, name: str) -> str:
    """Returns the order of the axes in memory, outermost first; raises where they are not dense but for blocks and layers."""
    # An axis of one element may be anywhere: outermost.
    alone = [axis for axis in "LBHS" if extents.get(axis, 1) == 1]
    others = sorted((axis for axis in "LBHS" if axis not in alone), key=lambda axis: -strides[axis])
    axes = alone + others
    dense = content
    for axis in reversed(others):
        if axis in "HS" and strides[axis] != dense or strides[axis] < dense:
            raise UnsupportedCache(
                f"layer {name}: {strides[axis]} B from one {axis} to the next, where {dense} B are one; "
                f"strides {strides}, extents {extents}"
            )
        dense = strides[axis] * extents[axis]
    if len(layer.specs) > 1:
        return "LB"  # A page; the strides tell the rest.
    if not layer.inside:
        return "".join(axes) + "C"
    # A block of a ring has all keys and then all scores, which vLLM counts as two heads.
    inner = "HS" if layer.is_ring else "S"
    tail = [axis for axis in inner if extents[axis] > 1]
    if tail != others[len(others) - len(tail) :]:
        raise UnsupportedCache(f"layer {name}: a block of one head is not in one piece")
    return "".join(axis for axis in axes if axis not in inner) + layer.inside


def _compare(deployment: Deployment, rank: int, members: list[dict[int, torch.Tensor]]) -> None:
    """Compares the strides of the deployment with those of the tensors, to see that the description is right."""
    for group, tensors in zip(deployment.groups, members):
        views = group.views(rank)
        for layer, tensor in tensors.items():
            parts = [view for view in views if view["layer"] == layer]
            one = len(group.allocations(rank)) == 1
            start = tensor.data_ptr() - tensor.untyped_storage().data_ptr() if one else 0
            size = tensor.element_size()
            blocks, heads = (tensor.stride(axis) * size for axis in range(2))
            found = {"offset": min(part["offset"] for part in parts), "blocks": set(), "heads": set(), "bytes": 0}
            wanted = {"offset": start, "blocks": {blocks}, "heads": set(), "bytes": tensor[0].numel() * size}
            for part in parts:
                found["blocks"].add(part["strides"][0])
                found["bytes"] += math.prod(part["shape"][1:]) * part["itemsize"]
                if not group.is_recurrent and part["shape"][2] > 1:
                    found["heads"].add(part["strides"][2])
                    wanted["heads"].add(heads)
            if found != wanted:
                raise UnsupportedCache(
                    f"layer {layer} of group {group.name!r} does not lie as it was described: {found}, but the tensor "
                    f"has {wanted}"
                )


def _blocks_of_kernels(tensor: torch.Tensor, num_blocks: int, name: str) -> int:
    split, rest = divmod(tensor.shape[0], num_blocks)
    if rest or not split:
        raise UnsupportedCache(f"layer {name}: {tensor.shape[0]} blocks of the kernels for {num_blocks} of the manager")
    return split


def _kernel_block(layer: Layer, tokens: int, name: str) -> int:
    """Returns the number of tokens in a kernel's block, if the manager's blocks have this many."""
    sizes = layer.kernel_blocks
    fixed = [size for size in sizes if isinstance(size, int) and tokens % size == 0]
    if not sizes or tokens in fixed or any(not isinstance(size, int) and tokens % size.base == 0 for size in sizes):
        return tokens
    if not fixed:
        raise UnsupportedCache(f"layer {name}: how its kernels divide a block of {tokens} tokens is not known here")
    return max(fixed)


def _in_kernel_blocks(tensors: list[torch.Tensor], split: int, name: str) -> tuple[list[torch.Tensor], int]:
    """Returns tensors of the manager's blocks as ones of the kernels' blocks, and how many of these there are from one of the manager's
    to the next.

    vLLM gives connectors the former where pages of several layers follow each other in a block, and its kernels the latter.
    """
    first = tensors[0]
    blocks, heads, states, width = first.shape
    page = states // split * first.stride(2)
    step, rest = divmod(first.stride(0), page)
    if rest or states % split or heads != 1:
        raise UnsupportedCache(f"layer {name}: its blocks cannot be divided into the {split} that its kernels take")
    shape, strides = ((blocks - 1) * step + split, 1, states // split, width), (page, *first.stride()[1:])
    return [tensor.as_strided(shape, strides) for tensor in tensors], step


def _storage_from(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a storage from where a tensor begins."""
    storage = tensor.untyped_storage()
    start = tensor.data_ptr() - storage.data_ptr()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(storage, start, (storage.nbytes() - start,))
