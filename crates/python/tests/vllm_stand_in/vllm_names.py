"""Stands for the parts of vLLM 0.32 that the connector imports. Above each is the file that has the real one."""

import enum
import queue
import threading
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy

# --- vllm/distributed/kv_transfer/kv_connector/v1/base.py ------------------------------


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorHandshakeMetadata:
    pass


class KVConnectorWorkerMetadata:
    pass


@dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class SupportsHMA:
    pass


class KVConnectorBase_V1:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._connector_metadata = None

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config):
        return True

    def unregister_kv_caches(self):
        pass

    def restore_kv_caches(self):
        pass

    def bind_kv_cache_manager(self, kv_cache_manager):
        self._kv_cache_manager = kv_cache_manager

    def handle_preemptions(self, metadata):
        pass

    def bind_connector_metadata(self, metadata):
        self._connector_metadata = metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata

    def get_block_ids_with_load_errors(self):
        return set()

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        return {self._cache_hit_source: num_external_tokens} if num_external_tokens else {}


# --- vllm/distributed/kv_transfer/kv_connector/v1/metrics.py ---------------------------


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        # There the types are prometheus_client's.
        self._gauge_cls = metric_types["Gauge"]
        self._counter_cls = metric_types["Counter"]
        self._histogram_cls = metric_types["Histogram"]
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues


# --- vllm/v1/metrics/cache_hit_source.py -----------------------------------------------


class CacheHitSource(enum.Enum):
    P2P = "p2p"
    DISK = "disk"


# --- vllm/distributed/parallel_state.py ------------------------------------------------


class Group:
    """Ranks that tell each other something. Here they are made in one process, those of several stages on a thread each."""

    def __init__(self, world_size):
        self.world_size, self.cpu_group = world_size, self
        self._here, self._told, self._said = threading.local(), threading.Event(), {}
        self._all = threading.Barrier(world_size, timeout=20)

    @property
    def rank_in_group(self):
        return getattr(self._here, "rank", 0)

    @rank_in_group.setter
    def rank_in_group(self, rank):
        self._here.rank = rank

    def broadcast_object(self, value, src):
        if self.rank_in_group == src:
            self._said[src] = value
            self._told.set()
        assert self._told.wait(20), f"rank {src} has said nothing"
        return self._said[src]

    def gather(self, found, own):
        self._said[self.rank_in_group] = own
        self._all.wait()
        found[:] = [self._said[rank] for rank in range(self.world_size)]
        self._all.wait()


class Ranks:
    """The ranks of an engine: `tp` on each of `pp` stages."""

    def __init__(self, tp, pp=1):
        self.tp, self.pp = [Group(tp) for _ in range(pp)], [Group(pp) for _ in range(tp)]
        self._here = threading.local()

    def enter(self, rank):
        """This thread is a rank's from here on."""
        stage, tp_rank = self._here.place = divmod(rank, len(self.pp))
        self.tp[stage].rank_in_group, self.pp[tp_rank].rank_in_group = tp_rank, stage

    @property
    def place(self):
        return getattr(self._here, "place", (0, 0))


ranks = Ranks(1)


def get_tp_group():
    return ranks.tp[ranks.place[0]]


def get_pp_group():
    return ranks.pp[ranks.place[1]]


# --- vllm/v1/request.py ----------------------------------------------------------------


class RequestStatus(enum.IntEnum):
    WAITING = 0
    WAITING_FOR_REMOTE_KVS = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7


# --- vllm/lora/request.py --------------------------------------------------------------


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


# --- vllm/lora/worker_manager.py -------------------------------------------------------

adapters_on_disk: dict[str, bytes] = {}
"""What is in an adapter's folder, where a test wants something of its own."""


class LoRALayerWeights:
    def __init__(self, content, rank):
        from . import torch_numpy as torch

        self.module_name, self.rank, self.lora_alpha, self.scaling = "q_proj", rank, 16, 16 / rank
        array = numpy.frombuffer(content.ljust(64, b"."), numpy.uint8)[:64].view(numpy.float32).reshape(rank, -1)
        self.lora_a, self.lora_b = torch.from_numpy(array.copy(), torch.float32), torch.from_numpy(array.copy(), torch.float32)


class LoRAModel:
    def __init__(self, number, content):
        self.id, self.rank, self.is_3d_lora_weight = number, 8, False
        self.loras = {"model.layers.0.q_proj": LoRALayerWeights(content, self.rank)}


class WorkerLoRAManager:
    """Of `max_cpu_loras` adapters the one that was used last is evicted last."""

    def __init__(self, vllm_config):
        self.lora_config, self._adapter_manager, self.models = vllm_config.lora_config, self, {}

    def _load_adapter(self, request):
        path = request.lora_path
        return LoRAModel(request.lora_int_id, adapters_on_disk.get(path, path.encode()))

    def list_adapters(self):
        return set(self.models)

    def get_adapter(self, number):
        return self.models.get(number)

    def add_adapter(self, request):
        model = self.models.pop(request.lora_int_id, None)
        if model is None or request.load_inplace:
            model = self._load_adapter(request)
            if len(self.models) == self.lora_config.max_cpu_loras:
                del self.models[next(iter(self.models))]
        self.models[request.lora_int_id] = model


# --- vllm/engine/arg_utils.py ----------------------------------------------------------


class EngineArgs:
    """What a server is started with; there it makes the configuration, out of options."""

    def __init__(self, config):
        self.config = config

    def create_engine_config(self, usage_context=None, headless=False):
        return self.config


# --- vllm/distributed/kv_transfer/kv_connector/factory.py ------------------------------


class KVConnectorFactory:
    _registry: dict[str, Any] = {}

    @classmethod
    def register_connector(cls, name, module_path, class_name):
        cls._registry[name] = module_path, class_name


# --- vllm/v1/engine/core.py ------------------------------------------------------------


class EngineCore:
    def __init__(self, scheduler, lora):
        self.scheduler, self._lora = scheduler, lora

    def add_lora(self, lora_request):
        for manager in self._lora:
            manager.add_adapter(lora_request)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return []

    def set_weight_version(self, weight_version):
        pass

    def sleep(self, level=1, mode="abort"):
        self.scheduler.run()
        if not self.scheduler.reset():
            raise RuntimeError("Failed to reset the KV connector cache.")
        self.scheduler.fall_asleep()

    def wake_up(self, tags=None):
        self.scheduler.wake_up()


class EngineCoreProc(EngineCore):
    def __init__(self, scheduler, lora):
        super().__init__(scheduler, lora)
        self.input_queue, self.engines_running, self.batch_queue = queue.Queue(), False, None

    def _process_input_queue(self):
        while not self.scheduler.has_requests() or not self.input_queue.empty():
            self.input_queue.get()()


# --- vllm/model_executor/models/utils.py -----------------------------------------------


def extract_layer_index(name):
    [number] = [int(part) for part in name.split(".") if part.isdigit()]
    return number


# --- vllm/transformers_utils/config.py -------------------------------------------------


def iter_rope_parameters(config):
    ropes = getattr(config, "rope_parameters", None) or {}
    nested = any(isinstance(rope, dict) for rope in ropes.values())
    yield from ropes.values() if nested else filter(None, [ropes])


# --- vllm/model_executor/layers/mamba/mamba_utils.py -----------------------------------

conv_state_dim_first = False


def is_conv_state_dim_first():
    return conv_state_dim_first


# --- vllm/v1/attention/backends/registry.py --------------------------------------------

MambaAttentionBackendEnum = enum.Enum("MambaAttentionBackendEnum", "MAMBA1 MAMBA2 SHORT_CONV GDN_ATTN")

# --- vllm/v1/attention/backends/cpu_attn.py --------------------------------------------

attn_isa = "vec"


def _get_attn_isa(dtype, block_size, head_size=None, kv_cache_dtype=None):
    return attn_isa


# --- vllm/v1/kv_cache_interface.py -----------------------------------------------------


class KVQuantMode(enum.IntEnum):
    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    OCTAVE_K3V4 = 12
    CUSTOM = 12


@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int
    dcp_sharded: bool = field(default=False, kw_only=True)
    is_draft: bool = field(default=False, kw_only=True, compare=False)

    @property
    def prefix_cacheable(self):
        return True


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    head_size: int
    dtype: Any
    max_tp_shards: int | None = None
    head_size_v: int = None
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
    num_head_slots: int | None = None
    dcp_sharded: bool = True
    state_content_bytes: int | None = None
    tokens_per_state: int = 1

    def __post_init__(self):
        if self.head_size_v is None:
            object.__setattr__(self, "head_size_v", self.head_size)

    @property
    def num_heads(self):
        return self.num_head_slots or self.num_kv_heads

    @property
    def state_content_size_bytes(self):
        return self.state_content_bytes or (self.head_size + self.head_size_v) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    cache_role: str = "sparse"
    is_index_group_leader: bool = False
    topk_buffer_width: int | None = None
    non_causal_multi_token_decode: bool = False
    head_size_v: int = 0


@dataclass(frozen=True, kw_only=True)
class RSWASpec(FullAttentionSpec):
    rswa_window: int


@dataclass(frozen=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    sink_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    attention_chunk_size: int


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    sliding_window: int
    extra_retained_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    bounded_replay: bool = False
    head_size_v: int = 0


@dataclass(frozen=True, kw_only=True)
class CircularBufferSpec(AttentionSpec):
    pass


class CrossAttentionSpec(AttentionSpec):
    pass


class EncoderOnlyAttentionSpec(AttentionSpec):
    pass


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    shapes: tuple
    dtypes: tuple
    mamba_type: Any
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    tp_replicated: bool = False

    @property
    def state_content_size_bytes(self):
        return sum(prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes))


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    kv_cache_specs: dict = None


def iter_layer_specs(spec):
    return spec.kv_cache_specs.values() if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]


@dataclass
class KVCacheGroupSpec:
    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    enable_kv_transfer: bool = True


@dataclass
class KVCacheConfig:
    num_blocks: int
    kv_cache_groups: list[KVCacheGroupSpec]

    @property
    def transfer_group_ids(self):
        return tuple(at for at, group in enumerate(self.kv_cache_groups) if group.enable_kv_transfer)

    @property
    def has_mamba_layers(self):
        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self.kv_cache_groups)

    @property
    def needs_kv_cache_zeroing(self):
        specs = [each for group in self.kv_cache_groups for each in iter_layer_specs(group.kv_cache_spec)]
        kinds = {(spec.dtype, spec.kv_quant_mode) for spec in specs if isinstance(spec, AttentionSpec)}
        return self.has_mamba_layers or len(kinds) > 1


# --- vllm/config -----------------------------------------------------------------------

__version__ = "0.32.0"

current_config = None


def get_current_vllm_config_or_none():
    return current_config


@dataclass
class KVTransferConfig:
    kv_connector: str
    kv_role: str
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_load_failure_policy: str = "fail"

    @property
    def is_kv_producer(self):
        return self.kv_role in ("kv_producer", "kv_both")

    @property
    def is_kv_consumer(self):
        return self.kv_role in ("kv_consumer", "kv_both")


@dataclass(frozen=True)
class Backend:
    """An attention backend whose kernels take blocks of any multiple of a size."""

    name: str
    base: int = 1

    def get_name(self):
        return self.name

    def get_supported_kernel_block_sizes(self, spec=None):
        return [SimpleNamespace(base=self.base)]


def vllm_config(role="kv_producer", extra=None, *, tp=1, pp=1, rank=0, heads=4, backends=None, lookahead=0, groups=None, behind=0,
                prefix_caching=False, model=None, max_loras=4, cache_dtype="auto", device="cpu", parallel=None, drafts=None, total=None):  # fmt: skip
    """What the connector reads of vLLM's configuration. `backends`: the attention backend of each layer; `parallel`: what is otherwise
    of the configuration of parallelism; `drafts`: that of speculation; `total`: how many layers the model has."""
    layers = {
        name: SimpleNamespace(get_attn_backend=lambda backend=backend: Backend(backend), _index_kpool=16)
        for name, backend in (backends or {}).items()
    }
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig("TransloadConnector", role, extra),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            rank=rank,
            nnodes=1,
            distributed_executor_backend="uni" if tp * pp == 1 else "mp",
            **{
                "decode_context_parallel_size": 1,
                "prefill_context_parallel_size": 1,
                "cp_kv_cache_interleave_size": 1,
                "data_parallel_size": 1,
                "data_parallel_index": 0,
                "data_parallel_rank_local": None,
                "data_parallel_external_lb": False,
                "data_parallel_hybrid_lb": False,
                "enable_elastic_ep": False,
            }
            | (parallel or {}),
        ),
        device_config=SimpleNamespace(device_type=device),
        model_config=SimpleNamespace(
            served_model_name="stand-in",
            dtype=None,
            is_prefix_caching_supported=True,
            enable_sleep_mode=False,
            get_total_num_kv_heads=lambda: heads,
            get_total_num_hidden_layers=lambda: total,
            hf_text_config=SimpleNamespace(
                n_groups=groups, rope_parameters=None, model_type="falcon_h1" if behind else "llama", num_hidden_layers=behind
            ),
            hf_config_path=None,
            hf_overrides={},
            max_model_len=4096,
            model=str(model or "nowhere"),
            revision=None,
            quantization=None,
        ),
        load_config=SimpleNamespace(load_format="auto"),
        lora_config=SimpleNamespace(max_cpu_loras=max_loras),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, enable_prefix_caching=prefix_caching),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        num_prefill_lookahead_tokens=lookahead,
        speculative_config=drafts,
    )
