"""An engine: the scheduler's loop and the workers' steps, in vLLM's order, with the connector in both.

vllm/v1/core/sched/scheduler.py, vllm/v1/worker/kv_connector_model_runner_mixin.py, and of
vllm/distributed/kv_transfer/kv_connector/utils.py the aggregation over ranks.
"""

import gc
import importlib
import pickle
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy

from . import vllm_names as vllm
from .blocks import Blocks
from .cache import Cache
from .late_cache import LateCache
from .request import Request
from .torch_numpy import registered

Status = vllm.RequestStatus


class Engine:
    """`shape` is that of `Cache`. `policy`: what becomes of a request whose load failed. With `streams`, one for each rank,
    it computes on GPUs, and waits for nothing there, however many steps they are behind. With `stages`, the layers of each, it has
    pipeline stages; with `drafts` only the last of these hears when a step is submitted."""

    def __init__(self, certs, agent, groups, *, tp=1, blocks=64, block_size=32, budget=10_000, policy="recompute",
                 prefix_caching=False, lookahead=0, port=None, model_groups=None, extra=None, uniform=False, role=None,
                 model=None, max_loras=4, cache_dtype="auto", streams=None, parallel=None, stages=(range(10**6),), drafts=False, **shape):  # fmt: skip
        self.groups, self.tp, self.budget, self.policy = groups, tp, budget, policy
        drafts = drafts or any(group.draft for group in groups)
        self.ranks, self._drafts = tp * len(stages), drafts
        shape |= {"blocks": blocks, "block_size": block_size, "uniform": uniform}
        self.caches = []
        for rank in range(self.ranks):
            kind = Cache if streams is None else partial(LateCache, stream=streams[rank])
            stage, tp_rank = divmod(rank, tp)
            there = [replace(group, layers=[layer for layer in group.layers if layer in stages[stage]]) for group in groups]
            self.caches.append(kind(there, tp=tp, rank=tp_rank, **shape))
        tables = groups[:1] if uniform else groups
        dcp, interleave = shape.get("dcp", 1), shape.get("interleave", 1)
        parallel = (parallel or {}) | {"decode_context_parallel_size": dcp, "cp_kv_cache_interleave_size": interleave}
        self.manager = Blocks(
            tables, blocks=blocks, block_size=block_size * dcp, prefix_caching=prefix_caching, seed=agent
        )
        self.all_blocks = self.manager.free_blocks
        # Those of earlier engines of one server come before.
        before = parallel.get("data_parallel_index", 0) * self.ranks
        self.port = free_ports(self.ranks, port and port + before) - before
        settings = {} if certs is None else {"certs": str(certs)}
        settings |= {"agent": agent, "host": "127.0.0.1", "port": self.port, "model": "stand-in"} | (extra or {})
        self._options = {
            "role": role or {"prefill": "kv_producer", "decode": "kv_consumer"}.get(agent, "kv_both"),
            "extra": settings,
            "tp": tp,
            "pp": len(stages),
            "heads": next((group.heads for group in groups if not group.recurrent), 0),
            "total": 1 + max(layer for group in groups if not group.draft for layer in group.layers),
            "drafts": speculation(groups) if drafts else None,
            "lookahead": lookahead,
            "groups": model_groups,
            "behind": max(group.behind for group in groups),
            "prefix_caching": prefix_caching,
            "model": model,
            "cache_dtype": cache_dtype,
            "max_loras": max_loras,
            "device": "cpu" if streams is None else "cuda",
            "parallel": parallel,
        }
        self.requests, self.waiting, self.running = {}, [], []
        self.received, self.failed, self.finished_req_ids, self.answers = set(), set(), set(), {}
        self.preempted_ids = set()
        self._counts = {"sending": {}, "recving": {}}
        self._failures = set()
        self._saved = None
        self.loads = {}
        self._start()

    def _start(self):
        self._connector = importlib.import_module("transload.vllm").TransloadConnector
        self.figures = self._connector.build_kv_connector_stats()
        vllm.ranks = self._members = vllm.Ranks(self.tp, self.ranks // self.tp)
        self.workers, self.lora = [None] * self.ranks, [None] * self.ranks
        self._on_each(self._start_worker)
        config = vllm.vllm_config(**self._options, backends=self.caches[0].backends())
        self.scheduler = self._connector(config, vllm.KVConnectorRole.SCHEDULER, self.caches[0].config())
        if config.kv_transfer_config.kv_load_failure_policy == "recompute":
            self.policy = "recompute"
        self.core = vllm.EngineCoreProc(self, self.lora)
        self.scheduler.bind_kv_cache_manager(self.manager)
        self._meet()

    def _on_each(self, call):
        """Calls this for each rank. Those of several stages wait for each other."""

        def called(rank):
            self._members.enter(rank)
            call(rank)

        if self.ranks == self.tp:
            for rank in range(self.ranks):
                called(rank)
        else:
            with ThreadPoolExecutor(self.ranks) as pool:
                list(pool.map(called, range(self.ranks)))

    def _meet(self):
        addresses = {divmod(rank, self.tp): worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(addresses)))

    def _start_worker(self, rank):
        cache = self.caches[rank]
        config = vllm.vllm_config(**self._options, backends=cache.backends(), rank=rank)
        self.workers[rank] = self._connector(config, vllm.KVConnectorRole.WORKER, cache.config())
        self.lora[rank] = vllm.WorkerLoRAManager(config)
        self.workers[rank].register_kv_caches({name: registered(tensor) for name, tensor in cache.tensors.items()})

    def shutdown(self):
        for half in (*self.workers, self.scheduler):
            half.shutdown()
        # Its port is free when nobody has the agent any more.
        self.workers.clear()
        gc.collect()

    def fall_asleep(self):
        for worker, cache in zip(self.workers, self.caches):
            worker.unregister_kv_caches()
            # Whoever reads it from here on reads no number.
            cache.restore([numpy.full_like(content, 0xFF) for content in cache.bytes()])

    def wake_up(self):
        vllm.ranks = self._members = vllm.Ranks(self.tp, self.ranks // self.tp)
        self._on_each(lambda rank: self.workers[rank].restore_kv_caches())
        self._meet()

    # --- what tests ask of it --------------------------------------------------------

    def add(self, tokens, params=None, **more):
        request = Request(tokens, params, **more)
        if request.lora_request is not None and request.lora_request.lora_int_id not in self.lora[0].models:
            # As the API server does with adapters that it is asked to serve.
            self.core.add_lora(request.lora_request)
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.scheduler.on_new_request(request)
        return request

    def run(self, until=None, seconds=20):
        """Steps until something is so, or there is nothing left to do."""
        end = time.monotonic() + seconds
        while not until() if until else self.has_requests():
            left = {request_id: request.status for request_id, request in self.requests.items()}
            assert time.monotonic() < end, f"still there: {left}"
            self.step()

    def assert_exact(self):
        """What every step has read until now is what it had to be."""
        for cache in self.caches:
            cache.finish()
            assert not cache.wrong, f"{len(cache.wrong)} times, first: {cache.wrong[0]}"

    def get_kv_connector(self):
        return self.scheduler

    def has_requests(self):
        return bool(self.requests or self.finished_req_ids or self.scheduler.has_pending_push_work())

    def get_ec_connector(self):
        return None

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def abort(self, request):
        held = request.status is Status.WAITING_FOR_REMOTE_KVS and request.request_id not in self.received
        self.received.discard(request.request_id)
        self.failed.discard(request.request_id)
        self._finish(request, Status.FINISHED_ABORTED, held)

    def preempt(self, request):
        self.running.remove(request)
        self.manager.free(request)
        request.status, request.num_computed_tokens = Status.PREEMPTED, 0
        request.preempted = True
        self.preempted_ids.add(request.request_id)
        self.waiting.insert(0, request)

    def reset(self):
        """As ``/reset_prefix_cache?reset_external=true``."""
        return self.manager.reset_prefix_cache() & self.scheduler.reset_cache()

    # --- the scheduler's loop --------------------------------------------------------

    def step(self):
        scheduled = self._schedule()
        output = SimpleNamespace(num_scheduled_tokens=scheduled, preempted_req_ids=self.preempted_ids)
        self.preempted_ids = set()
        step = pickle.dumps(self.scheduler.build_connector_meta(output))
        finished, self.finished_req_ids = self.finished_req_ids, set()
        work = [
            (self.requests[each], self.requests[each].num_computed_tokens, count) for each, count in scheduled.items()
        ]
        for request, _, count in work:
            request.num_computed_tokens += count
        results = [self._work(rank, pickle.loads(step), work, finished) for rank in range(self.ranks)]
        self._update(work, *self._aggregate(results))

    def _schedule(self):
        scheduled = {}
        for request in self.running:
            count = min(request.num_tokens - request.num_computed_tokens, self.budget)
            computed = request.num_computed_tokens
            assert self.manager.allocate(request, computed + count, computed), "tests preempt by hand"
            scheduled[request.request_id] = count
        for request in list(self.waiting):
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                if request.request_id not in self.received:
                    continue
                self._loaded(request)
            admitted = self._admit(request, scheduled)
            if admitted is False:
                break
        return scheduled

    def _admit(self, request, scheduled):
        cached = loaded = 0
        later = False
        if request.num_computed_tokens == 0:
            cached = self.manager.cached(request)
            loaded, later = self.scheduler.get_num_new_matched_tokens(request, cached)
            if request.get_skip_reading_prefix_cache():
                loaded, later = 0, False
            if loaded is None:
                return None
            computed = cached + loaded
        else:
            computed = request.num_computed_tokens
        count = 0 if later else min(request.num_tokens - computed, self.budget)
        if not self.manager.allocate(request, computed + count, computed, cached):
            return False
        blocks = self.manager.get_blocks(request.request_id)
        self.scheduler.update_state_after_alloc(request, blocks, loaded)
        request.num_computed_tokens = computed
        if loaded:
            [self.source] = self.scheduler.get_external_cache_hit_sources(request, loaded)
        if later:
            request.status = Status.WAITING_FOR_REMOTE_KVS
            self.loads[request.request_id] = (cached, computed, self._tables(request))
        else:
            self.waiting.remove(request)
            self.running.append(request)
            request.status = Status.RUNNING
            scheduled[request.request_id] = count
        return True

    def _tables(self, request):
        """The block table of each group; those that are one to vLLM have the same."""
        tables = self.manager.get_block_ids(request.request_id)
        return tables if len(tables) == len(self.groups) else tables * len(self.groups)

    def _loaded(self, request):
        self.received.remove(request.request_id)
        request.status = Status.PREEMPTED if request.preempted else Status.WAITING
        if request.request_id in self.failed:
            self.failed.remove(request.request_id)
            self.manager.free(request)
            return
        self.manager.cache(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1

    # --- a rank's step ---------------------------------------------------------------

    def _work(self, rank, step, work, finished):
        worker, cache = self.workers[rank], self.caches[rank]
        cache.begin_step()
        worker.handle_preemptions(step)
        worker.bind_connector_metadata(step)
        cache.be_busy(len(work))
        states = []
        for request, start, count in work:
            if request.lora_request is not None:
                self.lora[rank].add_adapter(request.lora_request)
            for group, table in zip(cache.groups, self._tables(request)):
                tokens = numpy.array(request.all_token_ids)
                cache.assert_seen(group, table, tokens, start)
                compute = partial(cache.write, group, table, tokens, start, start + count)
                if group.recurrent and cache.moves_states:
                    states.append(compute)
                else:
                    compute()
        worker.start_load_kv(SimpleNamespace())
        if not self._drafts or rank >= self.ranks - self.tp:
            worker.wait_for_save()
        cache.be_busy(len(states))
        for move in states:
            move()
        results = worker.get_transfer_results(finished)
        assert results.failed_recving <= results.finished_recving
        assert not worker.get_block_ids_with_load_errors()
        figures = worker.get_kv_connector_stats()
        saved = pickle.loads(pickle.dumps(worker.build_connector_worker_meta()))
        worker.clear_connector_metadata()
        if saved is not None:
            self._saved = saved if self._saved is None else self._saved.aggregate(saved)
        self._count(figures)
        return results

    def _count(self, figures):
        if figures is not None:
            self.figures = self.figures.aggregate(pickle.loads(pickle.dumps(figures)))

    def _aggregate(self, results):
        """What is finished on every rank, and what failed on any."""
        finished = {}
        for kind, counts in self._counts.items():
            finished[kind] = set()
            for result in results:
                for request_id in getattr(result, f"finished_{kind}"):
                    counts[request_id] = counts.get(request_id, 0) + 1
                    if counts[request_id] == self.ranks:
                        del counts[request_id]
                        finished[kind].add(request_id)
        for result in results:
            self._failures |= result.failed_recving
        failed = self._failures & finished["recving"]
        self._failures -= failed
        return finished["sending"], finished["recving"], failed

    # --- what came of a step ---------------------------------------------------------

    def _update(self, work, sent, received, failed):
        for request_id in failed:
            request = self.requests[request_id]
            if request.status is Status.WAITING_FOR_REMOTE_KVS and self.policy == "recompute":
                request.num_computed_tokens = 0
                self.failed.add(request_id)
        for request, _, _ in work:
            self.manager.cache(request, request.num_computed_tokens)
            if request.num_computed_tokens == request.num_tokens:
                request.sample(random.Random(str(request.all_token_ids)).randrange(1000))
                if len(request.all_token_ids) - request.num_prompt_tokens >= request.max_tokens:
                    self._finish(request, Status.FINISHED_LENGTH_CAPPED)
        if self.policy == "fail":
            for request_id in failed:
                if self.requests[request_id].status is Status.WAITING_FOR_REMOTE_KVS:
                    self._finish(self.requests[request_id], Status.FINISHED_ERROR, held=True)
        saved, self._saved = self._saved, None
        output = SimpleNamespace(
            finished_sending=sent, finished_recving=received, failed_recving=failed, kv_connector_worker_meta=saved
        )
        self.scheduler.update_connector_output(output)
        self._count(self.scheduler.get_kv_connector_stats())
        for request_id in received:
            request = self.requests[request_id]
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                self.received.add(request_id)
            else:
                assert request.finished
                self._free(request)
        for request_id in sent:
            self._free(self.requests[request_id])

    def _finish(self, request, status, held=False):
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.status = status
        self.manager.remove_skipped(request, request.num_computed_tokens)
        blocks = self.manager.clipped(request)
        kept, params = self.scheduler.request_finished_all_groups(request, blocks)
        self.answers[request.request_id] = pickle.loads(pickle.dumps(params))
        self.finished_req_ids.add(request.request_id)
        if not (held or kept):
            self._free(request)

    def _free(self, request):
        assert request.finished
        self.manager.free(request)
        del self.requests[request.request_id]


def speculation(groups):
    """What vLLM's configuration says of drafts."""
    heads = next((group.heads for group in groups if group.draft), 0)
    model = SimpleNamespace(get_total_num_kv_heads=lambda: heads)
    return SimpleNamespace(draft_model_config=model)


def free_ports(count, first=None):
    """The first of some neighbouring ports that nobody has. If `first` is given: that, once it is free."""
    for _ in range(100):
        port = first or random.randrange(20_000, 32_000)
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        try:
            for at, each in enumerate(sockets):
                each.bind(("0.0.0.0", port + at))
            return port
        except OSError:
            time.sleep(0.05)
        finally:
            for each in sockets:
                each.close()
    raise OSError("no free ports")
