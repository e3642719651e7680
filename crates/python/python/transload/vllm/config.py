"""The settings of the connector."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transload import Announcement, Identity, IdentityError

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig


BEFORE = "_before_loading"
"""The key of a `Before` among the settings, with which it travels to the engine's processes. It is no setting of an operator's."""
_LONGEST = 58
"""Characters of an instance's name. It leaves room for a rank behind it in the name of an agent."""
MOST_PEERS = 32
"""So many servers are asked for a prompt, each in a thread of its own."""
_INSTANCE = re.compile(r"[A-Za-z0-9._~-]{1,%d}" % _LONGEST)


class Before(dict[str, Any]):
    """Holds the result of `weights.before_loading`. No JSON has this type, so an operator cannot set it to switch the check off."""


class ConfigError(ValueError):
    """A setting is missing, unknown or wrong; the message says where, and what would be right."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Holds the settings in ``kv_connector_extra_config``, and what follows from vLLM's own."""

    certs: Path | None
    """Folder that ``transload certs init`` made. None where there is a store only: nothing moves between servers."""
    agent: str
    """Name of the service of this server. All servers of a service share one certificate, ``NAME.pem``. A rank may have its own,
    ``NAME-r.pem``."""
    host: str
    """Host name or address by which other servers reach this one. Default: vLLM's own (``VLLM_HOST_IP``)."""
    instance: str | None = None
    """Name of this server below its service, the same after a restart. Default: host name (a pod's name) and port."""
    port: int = 7600
    """UDP port of rank 0; rank r takes ``port + r``. The ranks of a pipeline stage follow those of the stage before. With data parallelism the ranks of engine 1 follow those of engine 0, and so on."""
    model: str | None = None
    """Name of the model. Blocks are only loaded from servers with the same name. Default: see `weights`."""
    announce: str | None = None
    """The etcd at which ``transload proxy --discover`` finds this server: ``etcd://HOST:PORT/PREFIX``. Of engines that share one URL
    the first announces it."""
    announce_url: str | None = None
    """URL at which the proxy reaches this server."""
    reset_keeps_weights: bool = False
    """Whether weights stay the same when vLLM clears its caches, so that they are never changed in place."""
    lanes: int | None = None
    """Connections to each other rank that bytes are spread over. Default: the agent's own choice."""
    lane_ports: tuple[int, int] | None = None
    """First and last UDP port that these connections may use, for firewalls. Default: any."""
    mode: str = "pull"
    """The direction of transfers to this decode server: ``pull``, or ``push``, where it invites the prefill server to write its blocks. A
    prefill server serves both."""
    require: str = "any"
    """The paths that bytes may take: ``any``, ``quic`` (the network only), ``local`` (within one host), ``ring`` or ``device``."""
    wire_codec: str = "exact"
    """The codec of keys and values on the network: ``exact``, or smaller, for slow networks, ``q8`` or ``q4``, which are not exact. It
    applies to loads when this server decodes, and permits the codec to others when it prefills."""
    lease_seconds: float = 60.0
    """How long prefilled blocks are kept for a decode server that does not come. It renews while a request waits, until
    they were kept for ``timeout_seconds`` more."""
    unclaimed_share: float = 0.5
    """The share of the cache that prefilled blocks may hold before a decode server asks for them; a single request may hold more. Beyond it
    the oldest are taken back."""
    overlap_share: float = 0.5
    """The share of the cache for requests whose prompts are loaded while they are prefilled; a single request may hold more. Beyond it
    requests wait without blocks."""
    pull_from: tuple[str, ...] = ()
    """Other servers, each as ``HOST:PORT`` with its `port`, that are asked for the prompt of a request that comes without a ticket."""
    held_share: float = 0.0
    """Of the cache, what prompts of ended requests may hold for servers that ask. 0: none are held, and nobody may ask."""
    held_seconds: float = 60.0
    """How long these are held."""
    ask_seconds: float = 0.5
    """How long a request waits for answers of other servers. What has not answered by then has nothing."""
    timeout_seconds: float = 300.0
    """The time limit of a load, retries included."""
    stall_seconds: float = 5.0
    """How long another server may stand still, or be silent, before a load from it is tried again. A process that is gone is
    heard of in a second, where its host says that the port is closed; this is for hosts that vanish or say nothing."""
    connect_seconds: float = 5.0
    """How long a server that does not answer is tried to be connected to, before a load from it fails. Connections from
    elsewhere have no longer either, until both sides have accepted each other."""
    store: str | None = None
    """URI of the store that prefixes are loaded from, and, unless this is a consumer, saved to."""
    store_model: str | None = None
    """The model's name in the store. Default: its first served name."""
    store_weights: str | None = None
    """Name of the weights, to tell them from others of that model name. Default: see `weights`."""
    store_engine: str = "version"
    """What must be equal in an engine that loads what this one saved: ``any`` (nothing), ``engine`` (that it is vLLM) or ``version`` (its
    minor version too). It must be the same on all servers that share a store."""
    codec: str = "exact"
    """The codec of keys and values in the store: ``exact``, or smaller, ``q8`` or ``q4``. With these, loads are not exact, and prefixes
    that were saved with another codec are not found."""
    kv_events: bool = False
    """Whether vLLM's KV events (``--kv-events-config``) also report what this server saves in the store."""
    store_trusts_media_identifiers: bool = False
    """Whether clients call images and the like by what is in them. Where they may choose, and have no salt, a prompt is
    saved and loaded up to the last whole token chunk before the first of them only."""
    store_wait_seconds: float = 2.0
    """How long a request waits to learn what is saved of it. Then it is computed."""
    store_timeout_seconds: float = 30.0
    """The time limit of a load from the store, after which the request is computed, and of a save, after which it is cancelled."""
    store_staging_gib: float = 1.0
    """Memory of each rank for blocks that are being saved. Blocks that do not fit are not saved."""

    @classmethod
    def read(cls, vllm_config: VllmConfig) -> Config:
        """Returns the settings of this server.

        Raises:
            ConfigError: one is missing, unknown, or of the wrong type.
        """
        transfer = vllm_config.kv_transfer_config
        given: dict[str, Any] = dict(transfer.kv_connector_extra_config or {})
        if isinstance(given.get(BEFORE), Before):
            del given[BEFORE]
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
                raise ConfigError(f"{_at(name)} is not a setting{hint}")
        for name in ("certs", "instance", "announce", "announce_url", "model", "store", "store_model", "store_weights"):
            given[name] = typed(name, given.get(name) or "", str) or None
        if given["certs"] is None and given["store"] is None:
            raise ConfigError(
                f"{_at('certs')} is missing: the folder with this server's certificate, "
                f"as `transload certs init` makes it; or give {_at('store')}, where prefixes are saved"
            )
        if given["store"] is not None and "://" not in given["store"]:
            raise ConfigError(f"{_at('store')} is {given['store']!r}: give a URI, as file:///var/kv")
        if (given["announce"] is None) != (given["announce_url"] is None):
            raise ConfigError(
                f"{_at('announce')} and {_at('announce_url')} go together: an etcd, and where this server answers requests"
            )
        if given["certs"] is not None:
            given["certs"] = Path(given["certs"]).expanduser()
        given.setdefault("agent", "prefill" if transfer.kv_role == "kv_producer" else "decode")
        if "host" not in given:
            from vllm.utils.network_utils import get_ip

            given["host"] = get_ip()
        for name in ("agent", "host"):
            typed(name, given.get(name, ""), str)
        for name in ("reset_keeps_weights", "store_trusts_media_identifiers", "kv_events"):
            typed(name, given.get(name, False), bool)
        if given["instance"] is not None and not _INSTANCE.fullmatch(given["instance"]):
            raise ConfigError(f"{_at('instance')} is {given['instance']!r}: give 1 to 58 letters, digits and . _ ~ -")
        _one_of("mode", given.get("mode", cls.mode), "pull", "push")
        _one_of("store_engine", given.get("store_engine", cls.store_engine), "any", "engine", "version")
        codec = given.get("codec", cls.codec)
        _one_of("codec", codec, "exact", "q8", "q4")
        if codec != "exact" and given["store"] is None:
            raise ConfigError(f"{_at('codec')} is {codec!r}, and there is no store that it is for: give {_at('store')}")
        if given.get("kv_events") and given["store"] is None:
            raise ConfigError(f"{_at('kv_events')} tells of what is saved, and there is no store: give {_at('store')}")
        if given.get("kv_events") and not is_told(vllm_config):
            raise ConfigError(f"{_at('kv_events')} adds to vLLM's own events: start the server with --kv-events-config, or leave it out")
        wire_codec = given.get("wire_codec", cls.wire_codec)
        _one_of("wire_codec", wire_codec, "exact", "q8", "q4")
        if wire_codec != "exact" and transfer.is_kv_consumer:
            if given.get("mode", cls.mode) == "push":
                raise ConfigError(f"{_at('wire_codec')} is {wire_codec!r}, and what is pushed is exact: give \"mode\": \"pull\"")
            if given.get("require", cls.require) not in ("any", "quic"):
                raise ConfigError(f"{_at('wire_codec')} is {wire_codec!r}, and codecs go over the network: give \"require\": \"any\"")
            if given["store"] is not None and transfer.is_kv_producer and codec != wire_codec:
                raise ConfigError(
                    f"{_at('wire_codec')} is {wire_codec!r} and codec is {codec!r}, and what came with one would be saved as what "
                    "the other gives: give the same for both"
                )
        _one_of("require", given.get("require", cls.require), "any", "quic", "local", "ring", "device")
        port = typed("port", given.get("port", cls.port), int)
        if not 1 <= port <= 65535:
            raise ConfigError(f"{_at('port')} is {port}: give a port from 1 to 65535")
        if "lanes" in given and not 1 <= typed("lanes", given["lanes"], int) <= 64:
            raise ConfigError(f"{_at('lanes')} is {given['lanes']}: give 1 to 64")
        given["pull_from"] = _peers(given.get("pull_from", ()))
        for name in ("pull_from", "held_share"):
            if given.get(name) and given["certs"] is None:
                raise ConfigError(f"{_at(name)} is of blocks that move between servers: give {_at('certs')}")
            if given.get(name) and wire_codec != "exact":
                raise ConfigError(f"{_at(name)} is of blocks that are exact, and wire_codec is {wire_codec!r}: leave one of the two out")
        if (ports := given.get("lane_ports")) is not None:
            if not (
                isinstance(ports, (list, tuple))
                and len(ports) == 2
                and all(type(each) is int for each in ports)
                and 1 <= ports[0] <= ports[1] <= 65535
            ):
                raise ConfigError(f"{_at('lane_ports')} is {ports!r}: give the first and the last port, as [7610, 7640]")
            given["lane_ports"] = tuple(ports)
        for name, least in (
            ("lease_seconds", 1),
            ("timeout_seconds", 1),
            ("stall_seconds", 2),
            ("connect_seconds", 1),
            ("held_seconds", 1),
            ("ask_seconds", 0),
            ("store_wait_seconds", 0),
            ("store_timeout_seconds", 0),
        ):
            if name in given:
                given[name] = float(typed(name, given[name], (int, float)))
                if not least <= given[name] <= 86_400 or math.isnan(given[name]):
                    raise ConfigError(f"{_at(name)} is {given[name]}: give {least} to 86400 seconds")
        staging = typed("store_staging_gib", given.get("store_staging_gib", cls.store_staging_gib), (int, float))
        if not 0 <= staging <= 1 << 20:
            raise ConfigError(f"{_at('store_staging_gib')} is {staging}: give 0 to {1 << 20} GiB of memory")
        for name in ("unclaimed_share", "overlap_share", "held_share"):
            share = typed(name, given.get(name, getattr(cls, name)), (int, float))
            if name == "held_share" and not 0 <= share < 1:
                raise ConfigError(f"{_at(name)} is {share}: give a part of the cache, from 0 to below 1")
            if name != "held_share" and not 0 < share <= 1:
                raise ConfigError(f"{_at(name)} is {share}: give a part of the cache, above 0 and up to 1")
        return cls(**given)

    def of_engine(self, parallel: ParallelConfig) -> Config:
        """Returns the settings of one engine of a server: with data parallelism each has ports and a name of its own.

        Raises:
            ConfigError: there are not as many ports, or no such name.
        """
        # Engines of dense models believe to be the only one. The index is theirs all the same.
        index, ranks = parallel.data_parallel_index, ranks_of(parallel)
        all_ranks = max(parallel.data_parallel_size, index + 1) * ranks
        if self.certs is not None and self.port + all_ranks > 65536:
            raise ConfigError(
                f"{_at('port')} is {self.port}, and the last of {all_ranks} ranks would take {self.port + all_ranks - 1}: "
                f"give at most {65536 - all_ranks}"
            )
        instance = self.instance
        if instance is not None and index:
            instance += f"-dp{index}"
            if len(instance) > _LONGEST:
                raise ConfigError(
                    f"{_at('instance')} is {self.instance!r}, and engine {index} would be {instance!r}: that is longer than {_LONGEST} "
                    "characters"
                )
        if parallel.data_parallel_hybrid_lb:
            has_url = not parallel.data_parallel_rank_local
        else:
            has_url = parallel.data_parallel_external_lb or index == 0
        return dataclasses.replace(
            self, port=self.port + index * ranks, instance=instance, announce=self.announce if has_url else None
        )

    @property
    def is_exact(self) -> bool:
        """Returns whether loads from the store equal what was saved, bit for bit."""
        return self.codec == "exact"

    def announcements(self, kv_role: str) -> list[Announcement]:
        """Returns announcements for proxies: this server is there for each half of requests that it computes.

        Raises:
            ConfigError: the etcd or the URL is none.
        """
        if self.announce is None or self.announce_url is None:
            return []
        roles = {"kv_producer": ["prefill"], "kv_consumer": ["decode"]}.get(kv_role, ["prefill", "decode"])
        try:
            return [Announcement(self.announce, role, self.announce_url) for role in roles]
        except ValueError as error:
            raise ConfigError(f"{_at('announce')} and announce_url: {error}") from error

    def certificate(self, rank: int) -> str:
        """Returns the name of a rank's certificate: ``AGENT-rank`` where there is one, else that of all ranks, ``AGENT``."""
        assert self.certs is not None
        name = f"{self.agent}-{rank}"
        return name if (self.certs / f"{name}.pem").exists() else self.agent

    def identity(self, rank: int) -> Identity | None:
        """Returns the identity of a rank. None where nothing moves between servers.

        Raises:
            ConfigError: it is not there, or unusable.
        """
        if self.certs is None:
            return None
        name = self.certificate(rank)
        try:
            return Identity(self.certs, name)
        except IdentityError as error:
            roles = "serve,pull,push,renew"
            raise ConfigError(
                f"no certificate for {name!r} ({error}); `transload certs add {self.certs} {name}={roles}` makes one, "
                "for all ranks and all replicas of this server"
            ) from error


def is_told(vllm_config: VllmConfig) -> bool:
    """Returns whether vLLM publishes KV events."""
    events = getattr(vllm_config, "kv_events_config", None)
    return events is not None and events.enable_kv_cache_events


def ranks_of(parallel: ParallelConfig) -> int:
    """Returns how many ranks an engine has: those of tensor parallelism on each pipeline stage."""
    return parallel.pipeline_parallel_size * parallel.tensor_parallel_size


def _at(name: str) -> str:
    return f"kv_connector_extra_config.{name}"


def _peers(given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > MOST_PEERS or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{_at('pull_from')} is {given!r}: give a list of up to {MOST_PEERS} texts HOST:PORT")
    for each in given:
        host, _, port = each.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            raise ConfigError(f"{_at('pull_from')} has {each!r}: give HOST:PORT, with the `port` of that server")
    return tuple(dict.fromkeys(given))


def _one_of(name: str, value: Any, *words: str) -> None:
    if typed(name, value, str) not in words:
        raise ConfigError(f"{_at(name)} is {value!r}: give {', '.join(words[:-1])} or {words[-1]}")


def typed(name: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        wanted = {str: "a text", int: "a whole number", bool: "true or false"}.get(kind, "a number")
        raise ConfigError(f"{_at(name)} is {value!r}: give {wanted}")
    return value
