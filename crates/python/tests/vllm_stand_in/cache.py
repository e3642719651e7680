"""The cache of one rank: one buffer, which the layers of all groups overlay (vllm/v1/kv_cache_interface.py)."""

import numpy
from numpy.lib.stride_tricks import as_strided

from . import torch_numpy as torch
from . import vllm_names as vllm


class Cache:
    """A buffer that layers have in common, or are `separate` in.

    `order` is as in deployment documents, `kernel` the tokens of a kernel's block; `shared` are layers of the first
    group that have no cache of their own. If `uniform`, all groups are one to vLLM: they share blocks and not a place.
    `storage` makes what is behind its tensors. `interleave` tokens in turn are dealt out to each of `dcp` ranks.
    """

    moves_states = False
    """Whether recurrent states come to their place behind what vLLM calls the end of a step."""
    wrong = ()
    """What steps have read that is not what it has to be, where that is found out later."""

    def __init__(self, groups, *, tp, rank, blocks, block_size, kernel=None, order="LBHSC",
                 backend="FLASH_ATTN", separate=False, uniform=False, shared={}, dcp=1, interleave=1, storage=torch.Storage):  # fmt: skip
        self.groups, self.tp, self.rank = groups, tp, rank
        self.blocks, self.block_size, self.kernel = blocks, block_size, kernel or block_size
        self.order, self.backend = order, backend
        self.dcp, self.interleave = dcp, interleave
        self.page = max(self._page(group) for group in groups)
        self.uniform = uniform
        self.layers = (sum if uniform else max)(len(group.layers) for group in groups)
        number = self.layers if separate else 1
        # What was there before is no number: vLLM computes with no more than it has written, or zeroed.
        size = self.page * blocks * self.layers // number
        self.storages = [storage(numpy.full(size, 0xFF, numpy.uint8)) for _ in range(number)]
        self.tensors = {}
        for group in groups:
            for at, layer in enumerate(group.layers, len(self.tensors) if uniform else 0):
                self.tensors[self.name(group, layer)] = self._tensor(group, at, separate)
        self._shared = [self.name(groups[0], layer) for layer in shared]
        self.tensors |= {self.name(groups[0], to): self.tensors[self.name(groups[0], of)] for to, of in shared.items()}

    def begin_step(self):
        """What follows is a step's."""

    def be_busy(self, work):
        """Whatever follows is done later, if there is work to do."""

    def finish(self):
        """Waits for all that was submitted."""

    @staticmethod
    def name(group, layer):
        return f"{group.prefix}.{layer + group.behind}.{group.suffix}"

    def backends(self):
        """The attention backend of each layer."""
        own = {self.name(group, layer): group.backend for group in self.groups for layer in group.layers}
        return {name: own.get(name) or self.backend for name in self.tensors}

    def config(self):
        """What vLLM's KVCacheConfig says of it."""
        specs = []
        for group in self.groups:
            names = [self.name(group, layer) for layer in group.layers]
            specs.append(vllm.KVCacheGroupSpec(names, group.spec(self.tp, self.block_size), group.transfer))
        if self.uniform:
            kinds = {name: spec.kv_cache_spec for spec in specs for name in spec.layer_names}
            specs = [vllm.KVCacheGroupSpec(list(kinds), vllm.UniformTypeKVCacheSpecs(self.block_size, kinds, dcp_sharded=True))]
        specs[0].layer_names.extend(self._shared)
        return vllm.KVCacheConfig(self.blocks, specs)

    def _page(self, group):
        spec = group.spec(self.tp, self.block_size)
        size = spec.state_content_size_bytes
        return size if group.recurrent else size * spec.num_heads * (group.ring or self.block_size // group.tokens_per_state)

    def _tensor(self, group, at, separate):
        spec = group.spec(self.tp, self.block_size)
        content = spec.state_content_size_bytes
        split = 1 if group.recurrent or group.ring else self.block_size // self.kernel
        heads, states = (1, 1) if group.recurrent else (spec.num_heads, group.ring or self.kernel // group.tokens_per_state)
        extents = {"L": 1 if separate else self.layers, "B": self.blocks * split, "H": heads, "S": states, "C": content}
        strides, current = {}, 1
        for number, axis in reversed(list(enumerate(self.order))):
            # Within layers and blocks are pages: what one does not need of its place is padding.
            if {*self.order[: number + 1]} <= {*"LB"} and not {*self.order[number + 1 :]} & {*"LB"}:
                current = max(current, self.page // split)
            strides[axis] = current
            current *= extents[axis]
        dtype = torch.int8 if group.recurrent else group.dtype
        shape = (extents["B"], heads, states, content // dtype.itemsize)
        offset = 0 if separate else at * strides["L"]
        inner = (strides["B"], strides["H"], strides["S"], dtype.itemsize)
        return torch.Tensor(self.storages[at if separate else 0], dtype, shape, inner, offset)

    def _key_value(self, group, layer):
        """Views of keys and of values: by block of the kernels, head, token and element."""
        tensor = self.tensors[self.name(group, layer)]
        array = tensor.numpy()
        if group.parts:
            parts, content = [], tensor.untyped_storage().array
            start = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
            for width in group.parts:
                strides = (*array.strides[:2], width, 1)
                parts.append(numpy.ndarray((*array.shape[:3], width), numpy.uint8, content, start, strides))
                start += width * array.shape[2]
            return parts
        if group.ring and array.shape[1] == 2:
            return [array[:, :1], array[:, 1:]]
        if self.backend != "CPU_ATTN":
            return [array]
        size, (by_block, by_head, _, _) = array.itemsize, array.strides
        shape = (*array.shape[:3], group.head_dim)
        # Of a block and head: all keys, element by element, then all values, token by token.
        keys = as_strided(array, shape, (by_block, by_head, size, self.kernel * size))
        values = as_strided(array[:, :, self.kernel // 2 :, :], shape, (by_block, by_head, group.head_dim * size, size))
        return [keys, values]

    def write(self, group, table, tokens, start, end):
        """Computes tokens from `start` to `end` of a request whose blocks are `table`."""
        if start >= end:
            return
        if group.recurrent:
            content = self._state(group, tokens, end)
            for layer, page in self._pages(group, table):
                page[: len(content[layer])] = content[layer]
            return
        positions = self._states(group, start, end)[-(group.ring or end) :]
        positions = positions[numpy.array(table)[self._slots(group, positions)[0]] != 0]
        for view, where, content in self._places(group, table, tokens, positions):
            view[where] = content

    def assert_seen(self, group, table, tokens, start):
        """What the computation of the token at `start` reads is what it has to be."""
        if start == 0:
            return
        if group.recurrent:
            content = self._state(group, tokens, start)
            pages = self._pages(group, table)
            same = all((page[: len(content[layer])] == content[layer]).all() for layer, page in pages)
            assert same, f"rank {self.rank} computes on from a state that is not that after {start} tokens"
            return
        positions = self._states(group, group.skipped(start), start)
        for view, where, content in self._places(group, table, tokens, positions):
            wrong = positions[group.differ(view[where], content).any(axis=(1, 2))]
            assert not wrong.size, f"rank {self.rank} sees wrong tokens from {start}, {wrong.size} of them: {wrong[:9]}"

    def clear(self, group, table, start, end):
        """Zeroes what a load of these tokens leaves of the blocks that it begins to fill, where vLLM zeroes new blocks; of drafts
        everything."""
        if group.recurrent or not (group.draft or self.config().needs_kv_cache_zeroing):
            return
        if group.ring:
            for layer in group.layers:
                for view in self._key_value(group, layer):
                    view[table[0]] = 0
            return
        begins, ends = (-(-token // (self.block_size * self.dcp)) * self.block_size * self.dcp for token in (start, end))
        for position in self._states(group, begins, ends):
            entry, at = self._slots(group, position)
            block = table[entry]
            if block == 0 or not group.draft and max(start, group.skipped(end)) <= position < end:
                continue
            row = block * (self.block_size // self.kernel) + at // self.kernel
            for layer in group.layers:
                for view in self._key_value(group, layer):
                    view[row, :, at % self.kernel // group.tokens_per_state] = 0

    def _states(self, group, start, end):
        """The last token of each state of this rank that is complete with one of these tokens."""
        positions = numpy.arange(start, end)
        positions = positions[positions // self.interleave % self.dcp == self.rank % self.dcp]
        return positions[(positions + 1) % group.tokens_per_state == 0]

    def _slots(self, group, positions):
        """Entries of block tables, and the token of the block (vllm/v1/worker/block_table.py)."""
        if group.ring:
            return positions * 0, positions % group.ring
        entries, slots = numpy.divmod(positions, self.block_size * self.dcp)
        return entries, slots // (self.dcp * self.interleave) * self.interleave + slots % self.interleave

    def _places(self, group, table, tokens, positions):
        """Of each layer and part: a view, where in it tokens are, and what they are."""
        entries, slots = self._slots(group, positions)
        blocks, places = numpy.array(table)[entries], slots % (group.ring or self.kernel) // group.tokens_per_state
        if not group.ring:
            blocks = blocks * (self.block_size // self.kernel) + slots // self.kernel
        heads = group.local_heads(self.tp, self.rank)
        where = blocks[:, None], numpy.arange(len(heads)), places[:, None]
        for layer in group.layers:
            content = group.content(tokens, positions, layer, heads)
            views = self._key_value(group, layer)
            ends = numpy.cumsum([view.shape[3] for view in views])
            for view, part in zip(views, numpy.split(content, ends, axis=2)):
                yield view, where, part

    def _pages(self, group, table):
        block = table[-1 - min(group.drafts, len(table) - 1)]
        for layer in group.layers:
            yield layer, self.tensors[self.name(group, layer)].numpy()[block, 0, 0]

    def _state(self, group, tokens, end):
        """What a page of each layer holds after `end` tokens."""
        found = {}
        for layer in group.layers:
            conv, state = group.content(tokens, end, layer, self.tp, self.rank)
            taps = numpy.zeros(group.shapes(self.tp)[0], conv.dtype)
            taps[tuple(slice(extent) for extent in conv.shape)] = conv
            found[layer] = numpy.frombuffer(taps.tobytes() + state.tobytes(), numpy.uint8)
        return found

    def bytes(self):
        return [storage.array.copy() for storage in self.storages]

    def restore(self, bytes):
        for storage, old in zip(self.storages, bytes):
            storage.array[:] = old
