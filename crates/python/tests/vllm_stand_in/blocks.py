"""The manager of blocks (vllm/v1/core/kv_cache_manager.py): tables, a pool, and prefixes that stay cached in it."""

import random
from collections import deque
from types import SimpleNamespace

NULL = 0


class Blocks:
    """All groups take from one pool; block 0 is none."""

    def __init__(self, groups, *, blocks, block_size, prefix_caching=False, seed=0):
        self._groups, self._block_size, self._prefix_caching = groups, block_size, prefix_caching
        free = list(range(1, blocks))
        random.Random(seed).shuffle(free)
        self._free = deque(free)
        self._users = dict.fromkeys(free, 0)
        self._cached, self._key_of = {}, {}
        self._tables = {}
        # vllm/v1/core/kv_cache_coordinator.py: of each group and request how many entries of its table were cached, or passed over.
        self._counts = [{} for _ in groups]
        managers = [SimpleNamespace(num_cached_block=counts) for counts in self._counts]
        self.coordinator = SimpleNamespace(single_type_managers=managers)

    @property
    def free_blocks(self):
        return len(self._free)

    @property
    def block_pool(self):
        """vllm/v1/core/block_pool.py"""
        blocks = len(self._users) + 1
        return SimpleNamespace(num_gpu_blocks=blocks, get_num_free_blocks=lambda: len(self._free))

    def reset_prefix_cache(self):
        if len(self._free) < len(self._users):
            return False
        self._cached.clear()
        self._key_of.clear()
        return True

    def get_block_ids(self, request_id):
        return tuple(list(table) for table in self._tables.get(request_id, [[] for _ in self._groups]))

    def get_blocks(self, request_id):
        tables = self.get_block_ids(request_id)
        return SimpleNamespace(get_block_ids=lambda: tables)

    def clipped(self, request):
        """As a finished request hands its tables over: only what is computed."""
        size = -(-request.num_computed_tokens // self._block_size)
        tables = self.get_block_ids(request.request_id)
        return tuple(table if group.recurrent or group.ring else table[:size] for group, table in zip(self._groups, tables))

    def cached(self, request):
        """How many of a request's first tokens are in blocks already; the last never is."""
        if not self._prefix_caching or request.get_skip_reading_prefix_cache():
            return 0
        most = (request.num_tokens - 1) // self._block_size
        return next(count for count in range(most, -1, -1) if self._is_there(request, count)) * self._block_size

    def _is_there(self, request, count):
        """Whether all groups have what is needed to go on behind so many blocks: windows in whole blocks, however few of them."""
        for number, group in enumerate(self._groups):
            for at in range(self._first(group, count), count):
                if self._key(request, at, number) not in self._cached:
                    return False
        return True

    def _first(self, group, count):
        if group.recurrent:
            return 0
        if group.window:
            return max(0, count - -(-(group.window - 1) // self._block_size))
        return group.skipped(count * self._block_size) // self._block_size

    def allocate(self, request, total, computed, cached=0):
        """Blocks for `total` tokens, of which `computed` need nothing but to be seen; False if there are too few."""
        tables = self._tables.get(request.request_id) or self._adopt(request, cached)
        wanted = []
        for group, table in zip(self._groups, tables):
            if group.recurrent:
                wanted.append([True] * (1 + group.drafts - len(table)))
                continue
            if group.ring:
                wanted.append([True] * (1 - len(table)))
                continue
            skipped = group.skipped(computed) // self._block_size
            count = -(-total // self._block_size)
            wanted.append([at >= skipped for at in range(len(table), count)])
        if sum(map(sum, wanted)) > len(self._free):
            for table in tables if request.request_id not in self._tables else []:
                self._release(table)
            return False
        self._tables[request.request_id] = tables
        self.remove_skipped(request, computed)
        for table, more in zip(tables, wanted):
            table.extend(self._take() if real else NULL for real in more)
        return True

    def remove_skipped(self, request, computed):
        for group, table in zip(self._groups, self._tables.get(request.request_id, [])):
            if not group.recurrent and not group.ring:
                for at in range(min(group.skipped(computed) // self._block_size, len(table))):
                    self._release([table[at]])
                    table[at] = NULL

    def cache(self, request, computed):
        """Full blocks of computed tokens can be found by others."""
        if not self._prefix_caching:
            return
        for number, table in enumerate(self._tables[request.request_id]):
            counts, full = self._counts[number], computed // self._block_size
            for at, block in list(enumerate(table[:full]))[counts.get(request.request_id, 0) :]:
                key = self._key(request, at, number)
                if block != NULL and key not in self._cached:
                    self._cached[key], self._key_of[block] = block, key
            counts[request.request_id] = max(full, counts.get(request.request_id, 0))

    def free(self, request):
        for table, counts in zip(self._tables.pop(request.request_id, []), self._counts):
            self._release(reversed(table))
            counts.pop(request.request_id, None)

    def _adopt(self, request, cached):
        tables = [[] for _ in self._groups]
        for number, (group, table) in enumerate(zip(self._groups, tables)):
            self._counts[number][request.request_id] = count = cached // self._block_size
            table.extend([NULL] * self._first(group, count))
            for at in range(self._first(group, count), count):
                block = self._cached[self._key(request, at, number)]
                if self._users[block] == 0:
                    self._free.remove(block)
                self._users[block] += 1
                table.append(block)
        return tables

    def _key(self, request, at, group):
        adapter = request.lora_request and request.lora_request.lora_name
        return group, adapter, request.cache_salt, tuple(request.all_token_ids[: (at + 1) * self._block_size])

    def _take(self):
        block = self._free.popleft()
        self._users[block] = 1
        self._cached.pop(self._key_of.pop(block, None), None)
        return block

    def _release(self, blocks):
        for block in blocks:
            if block != NULL:
                self._users[block] -= 1
                assert self._users[block] >= 0, "a block is freed twice"
                if self._users[block] == 0:
                    self._free.append(block)
