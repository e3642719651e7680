"""The compiled module. Everything in it that is meant to be used is in `transload`."""

import builtins
from collections.abc import Callable, Generator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar

import numpy
import numpy.typing

__version__: str

# Whether this was built without optimization, and takes several times as long for everything.
DEBUG_BUILD: bool

# Block numbers of a group, -1 where an entry has no block; None where block i is entry i.
_Table = Sequence[int] | None
_T = TypeVar("_T")
_Paths = Literal["any", "quic", "local", "ring", "device"]
# "cpu" or "cuda:0", or a `torch.device`, whose text is the same.
_Device = str | Any

class TransloadError(Exception): ...
class DocumentError(TransloadError): ...
class PlanError(TransloadError): ...
class CacheMemoryError(TransloadError): ...
class CudaError(TransloadError): ...
class IdentityError(TransloadError): ...
class TicketError(TransloadError): ...
class LeaseError(TransloadError): ...

class TransferError(TransloadError):
    kind: Literal[
        "busy",
        "cancelled",
        "consumed",
        "content",
        "device_lost",
        "device_stalled",
        "expired",
        "failed",
        "incompatible",
        "other",
        "own",
        "peer_lost",
        "refused",
        "request",
        "restarted",
        "shutting_down",
        "ticket",
        "timed_out",
        "unknown",
        "unreachable",
        "version",
    ]
    is_misfit: bool

class AgentError(TransloadError): ...
class StoreError(TransloadError): ...
class ArchiveError(TransloadError): ...

class Deployment:
    def __new__(cls, document: dict[str, Any] | str) -> Deployment: ...
    @property
    def document(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def groups(self) -> list[Group]: ...

class View(TypedDict):
    layer: int
    spec: int
    kind: str
    component: str
    units: tuple[int, int]
    allocation: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

class Group:
    @property
    def name(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def order(self) -> str: ...
    @property
    def is_recurrent(self) -> bool: ...
    def allocations(self, rank: int = 0) -> list[int]: ...
    def views(self, rank: int = 0) -> list[View]: ...

class Plan:
    def __new__(
        cls,
        src: Deployment,
        dst: Deployment,
        tokens: int,
        *,
        start: int = 0,
        by_layer: bool = False,
    ) -> Plan: ...
    @property
    def groups(self) -> list[str]: ...
    @property
    def routes(self) -> list[tuple[int, int, int]]: ...
    def bind(self, src: Sequence[_Table], dst: Sequence[_Table]) -> BoundPlan: ...

class BoundPlan:
    @property
    def bytes(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def histogram(self) -> dict[int, int]: ...
    @property
    def routes(self) -> list[BoundRoute]: ...

class BoundRoute:
    @property
    def src_rank(self) -> int: ...
    @property
    def dst_rank(self) -> int: ...
    @property
    def group(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    def chunks(self) -> numpy.typing.NDArray[numpy.void]: ...
    def copy(self, src: Memory, dst: Memory) -> None: ...

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...
    @property
    def device(self) -> Any: ...

class Mark:
    def __new__(
        cls, stream: int | _CudaStream | _TorchStream = 0, device: _Device | None = None
    ) -> Mark: ...
    @property
    def done(self) -> bool: ...

class Memory:
    def __new__(
        cls, allocations: list[Any], *, writable: bool = True
    ) -> Memory: ...
    @staticmethod
    def allocate(lengths: Sequence[int], device: _Device | None = None) -> Memory: ...
    @property
    def allocations(self) -> list[tuple[int, int]]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    def read(self, offset: int, length: int, allocation: int = 0) -> bytes: ...
    def write(self, offset: int, data: bytes, allocation: int = 0) -> None: ...

class Announcement:
    def __new__(
        cls,
        etcd: str,
        role: Literal["prefill", "decode"],
        url: str,
    ) -> Announcement: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

class Identity:
    def __new__(
        cls, folder: str | PathLike[str], name: str | None = None
    ) -> Identity: ...
    @property
    def service(self) -> str: ...
    @property
    def cluster(self) -> str: ...

class Claims(TypedDict):
    set: bytes
    push: bool
    deployment: bytes
    incarnation: int
    start: int
    valid_tokens: int
    ranks: list[tuple[str, str, int]]
    time_left: float

class Ticket:
    def __new__(cls, text: str) -> Ticket: ...
    @staticmethod
    def mint(
        identity: Identity,
        set: bytes,
        ranks: Sequence[tuple[str, str, int]],
        *,
        deployment: bytes,
        incarnation: int,
        valid_tokens: int,
        push: bool = False,
        start: int = 0,
        time_left: float = 60.0,
        audience: str | bytes | None = None,
    ) -> Ticket: ...
    def open(self, identity: Identity) -> Claims: ...
    @property
    def text(self) -> str: ...

class Prompt:
    def __new__(
        cls,
        tokens: Sequence[int],
        *,
        adapter: str | None = None,
        multimodal: Sequence[tuple[str, int, int]] = (),
        salt: str | None = None,
        embeddings: bytes | None = None,
    ) -> Prompt: ...
    def digest(self, valid: int | None = None) -> bytes: ...
    def __len__(self) -> int: ...

class Completion(Generic[_T]):
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def result(self, timeout: float | None = None) -> _T: ...
    def add_done_callback(
        self, callback: Callable[[Completion[_T]], object]
    ) -> None: ...
    def remove_done_callback(
        self, callback: Callable[[Completion[_T]], object]
    ) -> bool: ...
    def __await__(self) -> Generator[Any, None, _T]: ...

class TransferMetrics(TypedDict):
    begun: int
    succeeded: int
    failed: dict[str, int]
    seconds: float
    queued: float

class RouteMetrics(TypedDict):
    begun: int
    succeeded: int
    failed: int
    seconds: float

class PathBytes(TypedDict):
    quic: int
    ring: int
    device: int

class LeaseMetrics(TypedDict):
    opened: int
    completed: int
    cancelled: int
    expired: int
    peer_lost: int
    device_lost: int
    device_stalled: int

class AgentMetrics(TypedDict):
    pulls: TransferMetrics
    pushes: TransferMetrics
    served: RouteMetrics
    received: RouteMetrics
    bytes_out: PathBytes
    bytes_in: PathBytes
    busy: float
    chunks: dict[int, int]
    leases: LeaseMetrics
    plans: int

class Agent:
    def __new__(
        cls,
        identity: Identity,
        deployment: Deployment,
        memories: dict[int, Sequence[Memory]],
        *,
        bind: str = "0.0.0.0:0",
        incarnation: int | None = None,
        instance: str | None = None,
        lanes: int | None = None,
        lane_ports: tuple[int, int] | None = None,
        early_wait: float | None = None,
        notice_wait: float | None = None,
        keep_idle: float | None = None,
        stall_seconds: float | None = None,
        connect_seconds: float | None = None,
        codecs: Sequence[str] = (),
    ) -> Agent: ...
    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def deployment_digest(self) -> bytes: ...
    def lease(
        self,
        set: bytes,
        rank: int,
        tables: Sequence[_Table],
        content: bytes,
        valid_tokens: int,
        *,
        start: int = 0,
        ttl: float = 60.0,
        hard_bound: float = 600.0,
        prefilled: bool = True,
        after: Mark | None = None,
    ) -> Lease: ...
    def open(
        self,
        set: bytes,
        rank: int,
        tables: Sequence[_Table],
        content: bytes,
        valid_tokens: int,
        *,
        start: int = 0,
        ttl: float = 60.0,
        hard_bound: float = 600.0,
        after: Mark | None = None,
    ) -> Lease: ...
    def pull(
        self,
        ticket: Ticket,
        ranks: Sequence[int],
        tables: Sequence[_Table],
        content: bytes,
        tokens: int,
        *,
        start: int = 0,
        by_layer: bool = False,
        paths: _Paths = "any",
        timeout: float = 300.0,
        keep_leases: bool = False,
        into: Ticket | None = None,
        after: Mark | None = None,
        codec: str = "exact",
    ) -> Transfer: ...
    def push(
        self,
        ticket: Ticket,
        ranks: Sequence[int],
        tables: Sequence[_Table],
        content: bytes,
        tokens: int,
        *,
        start: int = 0,
        by_layer: bool = False,
        paths: _Paths = "any",
        timeout: float = 300.0,
        keep_leases: bool = False,
        prefilled: bool = True,
        after: Mark | None = None,
    ) -> Transfer: ...
    def cancel(
        self, ticket: Ticket, content: bytes | None = None
    ) -> Completion[tuple[int, int]]: ...
    def renew(self, ticket: Ticket, ttl: float) -> Completion[float | None]: ...
    def gauges(self) -> dict[str, int]: ...
    def metrics(self) -> AgentMetrics: ...
    def shutdown(self, patience: float = 5.0) -> None: ...
    def __enter__(self) -> Agent: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Lease:
    @property
    def set(self) -> bytes: ...
    @property
    def rank(self) -> int: ...
    @property
    def ended(
        self,
    ) -> Completion[
        Literal["completed", "cancelled", "expired", "peer lost", "device lost", "device stalled"]
    ]: ...
    @property
    def is_claimed(self) -> bool: ...
    def ready(self, layer: int, tokens: int, *, after: Mark | None = None) -> None: ...
    def finish_prefill(self, *, after: Mark | None = None) -> None: ...
    def renew(self, ttl: float) -> None: ...
    def cancel(self) -> None: ...

class RouteReport(TypedDict):
    rank: int
    peer_rank: int
    bytes: int
    path: Literal["quic", "ring", "device"]
    attempts: int

class TransferReport(TypedDict):
    bytes: int
    seconds: float
    queued: float
    routes: list[RouteReport]
    skipped_here: list[str]
    skipped_there: list[str]

class Transfer:
    @property
    def ended(self) -> Completion[TransferReport]: ...
    def ready(
        self, rank: int, layer: int, tokens: int, *, after: Mark | None = None
    ) -> None: ...
    def finish_prefill(self, *, after: Mark | None = None) -> None: ...
    def cancel(self) -> None: ...

class RestoreReport(TypedDict):
    tokens: int
    pieces: int
    bytes: int

class LlamaStates:
    def __new__(
        cls,
        store: str,
        model: str,
        weights: str,
        sample: Any | None,
        *,
        engine_version: str | None = None,
    ) -> LlamaStates: ...
    def save(self, tokens: Sequence[int], state: Any, *, prompt: int = 0) -> int: ...
    def find(self, tokens: Sequence[int]) -> LlamaFound | None: ...
    def restore(self, found: LlamaFound) -> bytes | None: ...
    def usage(self) -> dict[str, int | None] | None: ...

class LlamaFound:
    @property
    def tokens(self) -> int: ...

class Archive:
    TOKENS: int

    def __new__(
        cls,
        store: str,
        model: str,
        weights: str,
        deployment: Deployment,
        *,
        engine: str | None = None,
        engine_version: str | None = None,
        sharing: str = "version",
        codec: str = "exact",
    ) -> Archive: ...
    @property
    def codec(self) -> str: ...
    def tiers(self) -> list[TierStats]: ...
    def missing(
        self, prompt: Prompt, tokens: int | None = None, *, state: int | None = None
    ) -> Missing: ...
    def save(
        self,
        missing: Missing,
        deployment: Deployment,
        rank: int,
        memories: Sequence[Memory],
        tables: Sequence[_Table],
        *,
        permit: Permit | None = None,
        after: Mark | None = None,
    ) -> bytes: ...
    def stage(
        self,
        missing: Missing,
        deployment: Deployment,
        rank: int,
        memories: Sequence[Memory],
        tables: Sequence[_Table],
        staging: Staging,
        *,
        permit: Permit | None = None,
        after: Mark | None = None,
    ) -> Staged: ...
    def put(self, staged: Staged) -> bytes: ...
    def publish(self, missing: Missing, parts: Sequence[bytes]) -> int: ...
    def find(self, prompt: Prompt) -> Found: ...
    def restore(
        self,
        found: Found,
        deployment: Deployment,
        rank: int,
        memories: Sequence[Memory],
        tables: Sequence[_Table],
        *,
        start: int = 0,
        permit: Permit | None = None,
        after: Mark | None = None,
    ) -> RestoreReport: ...

# A contiguous buffer, or (address, length).
_Part = Any
_Value = _Part | Sequence[_Part]

class ObjectInfo:
    @property
    def bytes(self) -> int: ...
    @property
    def meta(self) -> builtins.bytes: ...

class StoreUsage(TypedDict):
    bytes: int
    cap: int | None

class TierStats(TypedDict):
    tier: str
    hits: int
    bytes: int
    misses: int
    failures: int
    promotions: int
    skipped: int
    evictions: int | None

class Objects:
    def __new__(cls, store: str, namespace: str | bytes, *, threads: int | None = None) -> Objects: ...
    def put(
        self,
        keys: Sequence[str | bytes],
        values: Sequence[_Value],
        meta: bytes | Sequence[bytes] | None = None,
    ) -> builtins.list[bool]: ...
    def get(self, keys: Sequence[str | bytes], values: Sequence[_Value]) -> builtins.list[ObjectInfo | None]: ...
    def has(self, keys: Sequence[str | bytes]) -> builtins.list[ObjectInfo | None]: ...
    def delete(self, keys: Sequence[str | bytes]) -> None: ...
    def list(self) -> builtins.list[tuple[bytes, ObjectInfo, float | None]]: ...
    def usage(self) -> StoreUsage | None: ...
    def tiers(self) -> builtins.list[TierStats]: ...

class ObjectQueue:
    def __new__(
        cls,
        store: str,
        namespace: str | bytes,
        *,
        workers: int | None = None,
        threads: int | None = None,
    ) -> ObjectQueue: ...
    def event_fd(self) -> int: ...
    def submit_batch_set(self, keys: Sequence[str | bytes], memoryviews: Sequence[_Value]) -> int: ...
    def submit_batch_get(self, keys: Sequence[str | bytes], memoryviews: Sequence[_Value]) -> int: ...
    def submit_batch_exists(self, keys: Sequence[str | bytes]) -> int: ...
    def submit_batch_delete(self, keys: Sequence[str | bytes]) -> int: ...
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]: ...
    def close(self) -> None: ...

class Permit:
    def __new__(cls) -> Permit: ...
    def revoke(self) -> None: ...
    @property
    def is_quiet(self) -> bool: ...

class Staging:
    def __new__(cls, nbytes: int) -> Staging: ...
    @property
    def used(self) -> int: ...

class Staged:
    @property
    def nbytes(self) -> int: ...

class Missing:
    def __new__(cls, encoded: bytes) -> Missing: ...
    def encode(self) -> bytes: ...
    def __bool__(self) -> bool: ...

class Found:
    def __new__(cls, encoded: bytes) -> Found: ...
    @property
    def tokens(self) -> int: ...
    @property
    def codec(self) -> str: ...
    def shorten(self, tokens: int) -> Found: ...
    def encode(self) -> bytes: ...

def cuda_available() -> tuple[bool, str]: ...
def default_instance(port: int) -> str: ...
def file_digest(path: str | PathLike[str], *, stop: Callable[[], bool] | None = None) -> bytes | None: ...
def new_incarnation() -> int: ...
def run_command(started_as: Sequence[str], arguments: Sequence[str]) -> int: ...
