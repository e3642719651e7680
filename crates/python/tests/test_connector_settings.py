"""vLLM's connector: its settings, and what it refuses at the start, each by name."""

from dataclasses import replace

import pytest
from vllm_stand_in import torch_numpy as torch
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.blocks import Blocks
from vllm_stand_in.fixtures import move, prefilled, prompt, refuse
from vllm_stand_in.gpu import Device
from vllm_stand_in.model import Attention, IndexKeys, Latents, PackedLatents, gdn, mamba2

import transload

# --- settings --------------------------------------------------------------------------


def read(connector, role="kv_producer", **extra):
    return connector.Config.read(vllm.vllm_config(role, {"certs": "certs"} | extra))


def test_defaults(connector):
    config = read(connector)
    assert (config.agent, config.host, config.port, config.require) == ("prefill", "192.0.2.7", 7600, "any")
    assert (config.lease_seconds, config.timeout_seconds, config.mode) == (60, 300, "pull")
    assert (config.stall_seconds, config.connect_seconds) == (5, 5)
    assert read(connector, "kv_consumer").agent == "decode"


def test_what_is_given(connector):
    given = {"agent": "a", "host": "b", "port": 1, "lanes": 3, "require": "quic"}
    given |= {"lease_seconds": 1, "timeout_seconds": 2.5, "mode": "push", "stall_seconds": 20, "connect_seconds": 1}
    config = read(connector, **given)
    assert {name: getattr(config, name) for name in given} == given
    assert str(read(connector, certs="/certs").certs) == "/certs"
    assert "~" not in str(read(connector, certs="~/certs").certs)


WRONG = [
    ({"cert": "x"}, r"extra_config.cert is not a setting; did you mean 'certs'\?"),
    ({"xyz": 1}, r"extra_config.xyz is not a setting; there are certs, agent, host, instance, port, "),
    ({"_before_loading": {"files": "x", "max_model_len": 1}}, "extra_config._before_loading is not a setting"),
    ({"_before_loading": {}}, "extra_config._before_loading is not a setting"),
    ({"certs": 7}, "extra_config.certs is 7: give a text"),
    ({"agent": 7}, "extra_config.agent is 7: give a text"),
    ({"host": None}, "extra_config.host is None: give a text"),
    ({"require": 1}, "extra_config.require is 1: give a text"),
    ({"require": "tcp"}, "extra_config.require is 'tcp': give any, quic, local, ring or device"),
    ({"port": "7600"}, "extra_config.port is '7600': give a whole number"),
    ({"port": True}, "extra_config.port is True: give a whole number"),
    ({"port": 0}, "extra_config.port is 0: give a port from 1 to 65535"),
    ({"port": 65536}, "extra_config.port is 65536: give a port from 1 to 65535"),
    ({"lanes": 0}, "extra_config.lanes is 0: give 1 to 64"),
    ({"lanes": 1.5}, "extra_config.lanes is 1.5: give a whole number"),
    ({"lease_seconds": "1"}, "extra_config.lease_seconds is '1': give a number"),
    ({"lease_seconds": 0.5}, "extra_config.lease_seconds is 0.5: give 1 to 86400 seconds"),
    ({"lease_seconds": float("nan")}, "extra_config.lease_seconds is nan: give 1 to 86400 seconds"),
    ({"timeout_seconds": 1e6}, "extra_config.timeout_seconds is 1000000.0: give 1 to 86400 seconds"),
    ({"timeout_seconds": True}, "extra_config.timeout_seconds is True: give a number"),
    ({"stall_seconds": 1}, "extra_config.stall_seconds is 1.0: give 2 to 86400 seconds"),
    ({"stall_seconds": float("inf")}, "extra_config.stall_seconds is inf: give 2 to 86400 seconds"),
    ({"connect_seconds": 0}, "extra_config.connect_seconds is 0.0: give 1 to 86400 seconds"),
    ({"connect_seconds": "5"}, "extra_config.connect_seconds is '5': give a number"),
    ({"mode": "stream"}, "extra_config.mode is 'stream': give pull or push"),
    ({"codec": "q4"}, "extra_config.codec is 'q4', and there is no store that it is for: give kv_connector_extra_config.store"),
    ({"codec": "int4", "store": "file:///kv"}, "extra_config.codec is 'int4': give exact, q8 or q4"),
    ({"codec": 4, "store": "file:///kv"}, "extra_config.codec is 4: give a text"),
    ({"wire_codec": "int4"}, "extra_config.wire_codec is 'int4': give exact, q8 or q4"),
    ({"store_engine": "vllm"}, "extra_config.store_engine is 'vllm': give any, engine or version"),
    ({"reset_keeps_weights": "yes"}, "extra_config.reset_keeps_weights is 'yes': give true or false"),
    ({"store_trusts_media_identifiers": 1}, "extra_config.store_trusts_media_identifiers is 1: give true or false"),
    ({"mode": True}, "extra_config.mode is True: give a text"),
    ({"instance": "a/b"}, "extra_config.instance is 'a/b': give 1 to 58 letters"),
    ({"kv_events": 1, "store": "file:///kv"}, "extra_config.kv_events is 1: give true or false"),
    ({"kv_events": True}, "kv_events tells of what is saved, and there is no store: give kv_connector_extra_config.store"),
    ({"kv_events": True, "store": "file:///kv"}, "kv_events adds to vLLM's own events: start the server with --kv-events-config"),
    ({"store": "/var/kv"}, "give a URI"),
    ({"store": 5}, "give a text"),
    ({"store": "file:///x", "store_wait_seconds": -1}, "0 to 86400"),
    ({"store": "file:///x", "store_timeout_seconds": -1}, "0 to 86400"),
    ({"store": "file:///x", "store_staging_gib": -1}, "GiB of memory"),
    ({"unclaimed_share": 0}, "a part of the cache"),
    ({"unclaimed_share": float("nan")}, "a part of the cache"),
    ({"lane_ports": [7640, 7610]}, "lane_ports is .7640, 7610.: give the first and the last port"),
    ({"announce": "etcd://e:2379/t"}, "announce and .*announce_url go together"),
    ({"announce_url": "http://d:1"}, "announce and .*announce_url go together"),
    ({"certs": None}, "certs is missing: .*transload certs init"),
    ({"certs": ""}, "certs is missing: .*transload certs init"),
]
WRONG_WHERE_IT_LOADS = [
    ({"wire_codec": "q8", "mode": "push"}, "wire_codec is 'q8', and what is pushed is exact: give \"mode\": \"pull\""),
    ({"wire_codec": "q8", "require": "local"}, "wire_codec is 'q8', and codecs go over the network: give \"require\": \"any\""),
    ({"wire_codec": "q8", "store": "file:///kv"}, "wire_codec is 'q8' and codec is 'exact', and .* give the same for both"),
    ({"wire_codec": "q8", "store": "file:///kv", "codec": "q4"}, "wire_codec is 'q8' and codec is 'q4', and "),
]


@pytest.mark.parametrize(("extra", "message"), WRONG)
def test_settings_that_are_wrong(connector, extra, message):
    with pytest.raises(connector.ConfigError, match=message):
        read(connector, **extra)


@pytest.mark.parametrize(("extra", "message"), WRONG_WHERE_IT_LOADS)
def test_settings_that_are_wrong_where_a_server_loads(connector, extra, message):
    read(connector, **extra)
    with pytest.raises(connector.ConfigError, match=message):
        read(connector, "kv_both", **extra)


def test_certificates_that_are_missing(connector, engine, tmp_path):
    with pytest.raises(connector.ConfigError, match="certs is missing"):
        connector.Config.read(vllm.vllm_config(extra=None))
    added = "no certificate for 'other'.*transload certs add .* other=serve,pull,push,renew"
    with pytest.raises(connector.ConfigError, match=added):
        engine("prefill", tp=2, extra={"agent": "other"})
    with pytest.raises(connector.ConfigError, match="no certificate for 'prefill'"):
        engine("prefill", extra={"certs": str(tmp_path)})


def test_all_ranks_may_have_one_certificate(engine, certs):
    # As `transload certs init` makes them.
    for tp in 1, 2:
        both = {"tp": tp, "extra": {"certs": str(certs)}}
        move(engine("prefill", **both), engine("decode", **both), prompt(40))


def test_replicas_with_one_certificate(engine, certs):
    """Two prefill and two decode servers, as deployments of two replicas with one secret each."""
    prefills, decodes = (
        [engine(agent, extra={"certs": str(certs)} | named) for named in ({}, {"instance": f"{agent}-b"})]
        for agent in ("prefill", "decode")
    )
    for seed in range(12):
        move(prefills[seed % 2], decodes[seed // 2 % 2], prompt(40, seed))


def test_ranks_that_do_not_belong_together(engine):
    prefill = engine("prefill", tp=2)
    first, second = (worker.get_handshake_metadata() for worker in prefill.workers)
    server = transload.default_instance(prefill.port)
    assert (first.agent, second.agent) == (f"prefill-0/{server}-0", f"prefill-1/{server}-1")
    assert second.port == first.port + 1
    assert first.incarnation == second.incarnation
    other = engine("decode", tp=2).workers[1].get_handshake_metadata()
    with pytest.raises(RuntimeError, match="rank 1 .* of an earlier start"):
        prefill.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): first, (0, 1): other})


def test_addresses_of_another_connector(engine):
    """MultiConnector hands what the first of its connectors says to all of them."""
    prefill = engine("prefill")

    class NixlHandshakeMetadata(vllm.KVConnectorHandshakeMetadata):
        pass

    with pytest.raises(transload.vllm.ConfigError, match="another connector .NixlHandshakeMetadata.: within MultiConnector"):
        prefill.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): NixlHandshakeMetadata()})


# --- setups ----------------------------------------------------------------------------


def set_at(path, value):
    """Sets something of a configuration."""

    def change(config):
        *parts, last = path.split(".")
        for part in parts:
            config = getattr(config, part)
        setattr(config, last, value)

    return change


EARLY = {
    "elastic experts": ({}, set_at("parallel_config.enable_elastic_ep", True), "--enable-elastic-ep adds and removes engines"),
    "contexts": ({"store": "file:///kv"}, set_at("parallel_config.decode_context_parallel_size", 2),
                 "--decode-context-parallel-size is 2, .*extra_config.store out"),
    "prefill contexts": ({}, set_at("parallel_config.prefill_context_parallel_size", 2), "--prefill-context-parallel-size is 2"),
    "a device": ({}, set_at("device_config.device_type", "xpu"), "vLLM computes on 'xpu': .* memory of the host and of NVIDIA GPUs"),
    "no reuse of prefixes": ({"store": "file:///kv"}, set_at("model_config.is_prefix_caching_supported", False),
                             "vLLM does not reuse prefixes of this model.*extra_config.store"),
    "an unknown setting": ({"cert": "x"}, None, "extra_config.cert is not a setting; did you mean 'certs'"),
    "a wrong value": ({"mode": "pul"}, None, "extra_config.mode is 'pul': give pull or push"),
    "ports beyond the last": ({"port": 65535}, set_at("parallel_config.tensor_parallel_size", 2),
                              "extra_config.port is 65535, and the last of 2 ranks would take 65536: give at most 65534"),
    "ports of other engines": ({"port": 65530}, set_at("parallel_config.data_parallel_size", 4),
                               "extra_config.port is 65530, and the last of 8 ranks would take 65537: give at most 65528"),
    "ports of an engine that believes to be alone": ({"port": 65530}, set_at("parallel_config.data_parallel_index", 3),
                                                     "the last of 8 ranks would take 65537"),
    "a name that is too long": ({"instance": "a" * 55}, set_at("parallel_config.data_parallel_index", 3),
                                "extra_config.instance is 'a*', and engine 3 would be 'a*-dp3': that is longer than 58 characters"),
    "an announcement": ({"announce": "http://x", "announce_url": "http://127.0.0.1:8000"}, None, "extra_config.announce and announce_url: "),
    "no certificates": ({"certs": "/nowhere"}, None, "no certificate for 'prefill'.*transload certs add /nowhere prefill="),
    "a rank's certificate": ({}, set_at("parallel_config.tensor_parallel_size", 7), "no certificate for 'prefill'"),
    "a codec": ({"codec": "q8", "store": "file:///kv"}, set_at("cache_config.enable_prefix_caching", True), "--no-enable-prefix-caching"),
}  # fmt: skip
ONLY_EARLY = "an announcement", "no certificates", "a rank's certificate"
"""What each half of the connector finds out for itself, and later."""


@pytest.mark.parametrize("what", EARLY)
@pytest.mark.parametrize("outer", [None, "MultiConnector"])
def test_what_is_refused_before_a_model_is_loaded(connector, server_certs, what, outer):
    """It is refused in one line when vLLM makes its configuration, before it starts engines; and by each half of a connector."""
    from transload._vllm_plugin import register

    extra, change, message = EARLY[what]
    register()
    register()

    def made(extra, change):
        config = vllm.vllm_config(extra={"certs": str(server_certs)} | extra, tp=2)
        inner = config.kv_transfer_config
        if outer:
            given = {"kv_connector": inner.kv_connector, "kv_role": inner.kv_role, "kv_connector_extra_config": inner.kv_connector_extra_config}
            others = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
            config.kv_transfer_config = vllm.KVTransferConfig(outer, "kv_both", {"connectors": [others, given]}, "recompute")
        if change is not None:
            change(config)
        return config

    config = made({}, None)
    assert vllm.EngineArgs(config).create_engine_config(headless=False) is config
    config = made(extra, change)
    for role in () if outer or what in ONLY_EARLY else vllm.KVConnectorRole:
        with pytest.raises(connector.ConfigError, match=message):
            connector.TransloadConnector(config, role, None)
    with pytest.raises(connector.ConfigError, match=message) as raised:
        vllm.EngineArgs(config).create_engine_config(headless=False)
    assert "\n" not in str(raised.value)


def test_who_is_not_checked_early(connector):
    """A vLLM without this connector, and ranks on other hosts, whose certificates are there."""
    from transload._vllm_plugin import register

    register()
    config = vllm.vllm_config(extra={"certs": "/nowhere"})
    for change in (
        set_at("kv_transfer_config.kv_connector", "NixlConnector"),
        set_at("kv_transfer_config", None),
        lambda config: (set_at("kv_transfer_config", vllm.vllm_config(extra={"certs": "/nowhere"}).kv_transfer_config)(config),
                        set_at("parallel_config.nnodes", 2)(config)),
    ):  # fmt: skip
        change(config)
        assert vllm.EngineArgs(config).create_engine_config() is config


@pytest.fixture
def within(monkeypatch):
    """Has connectors made within vLLM's MultiConnector, whose configuration decides what becomes of a failed load."""

    def make(policy):
        outer = vllm.vllm_config()
        outer.kv_transfer_config.kv_connector, outer.kv_transfer_config.kv_load_failure_policy = "MultiConnector", policy
        monkeypatch.setattr(vllm, "current_config", outer)

    return make


def test_a_store_within_multi_connector(engine, connector, within, tmp_path):
    extra = {"store": f"file://{tmp_path}/kv"}
    within("fail")
    with pytest.raises(connector.ConfigError, match="beside MultiConnector's .* give \"kv_load_failure_policy\": \"recompute\""):
        engine("prefill", extra=extra)
    within("recompute")
    engine("prefill", extra=extra)


@pytest.mark.parametrize(
    ("agent", "setting", "shape", "message"),
    [
        ("prefill", "codec", {"prefix_caching": True}, "vLLM's own prefix cache .* --no-enable-prefix-caching"),
        # What a server sends is in its own cache as it was computed; what it is sent would be shared.
        ("decode", "wire_codec", {"prefix_caching": True, "role": "kv_consumer"}, "vLLM's own prefix cache .* leave wire_codec out"),
        ("decode", "wire_codec", {"prefix_caching": True, "role": "kv_both"}, "vLLM's own prefix cache .* leave wire_codec out"),
        ("prefill", "wire_codec", {"prefix_caching": True, "role": "kv_producer"}, None),
        ("prefill", "codec", None, "other connectors of MultiConnector .* leave codec out"),
        ("decode", "wire_codec", None, "other connectors of MultiConnector .* leave wire_codec"),
    ],
)
@pytest.mark.parametrize("codec", ["q8", "q4"])
def test_a_codec_beside_who_would_share_what_is_not_exact(engine, connector, within, tmp_path, codec, agent, setting, shape, message):
    if shape is None:
        within("recompute")
    store = {"store": f"file://{tmp_path}/kv"} if setting == "codec" else {}
    engine(agent, extra=store | {setting: "exact"}, **shape or {})
    if message is None:
        engine(agent, extra=store | {setting: codec}, **shape)
        return
    with pytest.raises(connector.ConfigError, match=f"{setting} is '{codec}', .* {message}"):
        engine(agent, extra=store | {setting: codec}, **shape or {})


def test_sleep_is_refused_where_connectors_are_not_told(connector, monkeypatch):
    from transload.vllm import startup

    config = vllm.vllm_config(extra={"certs": "certs"})
    config.model_config.enable_sleep_mode = True
    startup.check(config, config.kv_transfer_config)
    monkeypatch.delattr(vllm.KVConnectorBase_V1, "restore_kv_caches")
    with pytest.raises(connector.ConfigError, match="--enable-sleep-mode takes the cache's memory away, and this version .*: leave it out"):
        startup.check(config, config.kv_transfer_config)


def test_windows_and_cached_prefixes(connector, engine, tmp_path, monkeypatch):
    """A block that is loaded from where the window begins is not to be cached as a whole."""
    groups = [Attention(range(2)), Attention(range(2, 4), window=40)]
    monkeypatch.setattr(Blocks, "__init__", without_counts(Blocks.__init__))
    engine("prefill", groups, prefix_caching=True)
    engine("decode", groups)
    # What a prefill server loads comes from a store.
    stored = {"store": f"file://{tmp_path}/kv"}
    for agent, extra in ("decode", None), ("prefill", stored):
        with pytest.raises(connector.ConfigError, match="--no-enable-prefix-caching"):
            engine(agent, groups, prefix_caching=True, extra=extra)


def without_counts(init):
    """A manager of blocks that does not count which of them it has cached, where the connector looks for that."""

    def make(self, *arguments, **more):
        init(self, *arguments, **more)
        del self.coordinator

    return make


def other_spec(base=vllm.FullAttentionSpec, **changes):
    """Attention whose spec says something else."""

    class Other(Attention):
        def spec(self, tp, block_size):
            fields = {"num_kv_heads": 4, "head_size": 32, "dtype": torch.float32} | changes
            return base(block_size, **fields)

    return {"groups": [Other(range(2))]}


def on(kind):
    """Storages that are said to be on another device."""

    def storage(array):
        made = torch.Storage(array)
        made.device = Device(kind, 0)
        return made

    return storage


REFUSED = {
    "another device": (
        {"storage": on("xpu")}, "layers.0.attn: its cache is on xpu:0; caches are moved in memory of the host and of NVIDIA GPUs"
    ),
    "a window of a backend": (
        {"backend": "ROCM_ATTN", "groups": [Attention(range(2), window=40)]}, "layers.0.attn: how ROCM_ATTN orders a block is not known here"
    ),
    "quantization of chunks": (
        other_spec(vllm.ChunkedLocalAttentionSpec, attention_chunk_size=64, state_content_bytes=72) | {"cache_dtype": "int8_per_token_head"},
        "how FLASH_ATTN keeps 72 B of a head and token in a cache of int8_per_token_head is not known here",
    ),
    "encoders": (other_spec(vllm.CrossAttentionSpec), "a cache of CrossAttentionSpec cannot be moved"),
    "prefixes that see what comes after": (
        other_spec(non_causal=True), "a cache of FullAttentionSpec with non_causal True cannot be moved"
    ),
    "tokens kept behind a window": (
        other_spec(vllm.SlidingWindowSpec, sliding_window=40, extra_retained_tokens=2),
        "SlidingWindowSpec with extra_retained_tokens 2 cannot be moved",
    ),
    "windows behind a prompt": (other_spec(vllm.RSWASpec, rswa_window=40), "a cache of RSWASpec cannot be moved"),
    "sinks": (other_spec(vllm.SinkFullAttentionSpec), "a cache of SinkFullAttentionSpec cannot be moved"),
    "windows of latents": (
        other_spec(vllm.SlidingWindowMLASpec, sliding_window=40), "how FLASH_ATTN keeps 128 B of a latent of 128 B is not known here"
    ),
    "rings of a kind": (
        other_spec(vllm.CircularBufferSpec, num_kv_heads=1, head_size_v=0), "what FLASH_ATTN keeps in a ring of 32 tokens is not known"
    ),
    "latents of several tokens of another format": (
        {"groups": [Latents(range(2), tokens_per_state=4, head_dim=585)]}, "how DEEPSEEK_SPARSE_SWA keeps a state of 585 B is not known"
    ),
    "windows of compressed latents": (
        {"groups": [Latents(range(2), tokens_per_state=4, window=40, dtype=torch.bfloat16)]}, "keeps a state of 1168 B is not known"
    ),
    "a type": (other_spec(dtype=torch.float64), "elements of torch.float64 cannot be moved"),
    "heads that ranks do not add up to": (
        other_spec(num_kv_heads=3) | {"tp": 2}, "3 KV heads on each of 2 ranks, but the model has 4"
    ),
    "groups that are unknown": (
        {"groups": [mamba2(range(2))], "tp": 2}, "the model's config does not say how many Mamba2 groups it has"
    ),
    "short convolutions": (
        {"groups": [replace(gdn(range(2)), kind="SHORT_CONV")]}, "recurrent state of SHORT_CONV cannot be moved yet"
    ),
}  # fmt: skip


WHOLE = {
    "a backend": {"backend": "ROCM_ATTN"},
    "a latent of a backend": {"backend": "CPU_ATTN", "groups": [Attention(range(2), heads=1, mla=True)]},
    "quantization": other_spec(kv_quant_mode=vllm.KVQuantMode(2), state_content_bytes=72) | {"cache_dtype": "int8_per_token_head"},
    "quantization that only the spec tells": other_spec(kv_quant_mode=vllm.KVQuantMode(2)),
    "a platform's own quantization": other_spec(kv_quant_mode=vllm.KVQuantMode.CUSTOM) | {"cache_dtype": "platform_int8"},
    "a platform's own numbers": other_spec() | {"cache_dtype": "platform_f16"},
    "head slots": other_spec(num_head_slots=8),
    "more than keys and values": other_spec(state_content_bytes=260),
    "index keys of another format": {"groups": [IndexKeys(range(2), head_dim=64)]},
    "packed latents of another format": {"groups": [PackedLatents(range(2), head_dim=640)]},
}


@pytest.mark.parametrize("what", WHOLE)
def test_caches_of_which_only_whole_blocks_are_known(engine, caplog, what):
    deployment = engine("prefill", **WHOLE[what]).workers[0]._worker._cache.deployment
    assert all(group.name.startswith("pages/") for group in deployment.groups)
    [told] = [record.getMessage() for record in caplog.records if "moved whole" in record.getMessage()]
    assert "2 layers like model.layers.0" in told or "4 layers like model.layers.0" in told, told


@pytest.mark.parametrize("what", REFUSED)
def test_caches_that_cannot_be_read(connector, engine, what):
    shape, message = REFUSED[what]
    from transload.vllm.specs import UnsupportedCache

    with pytest.raises(UnsupportedCache, match=message):
        engine("prefill", **shape)


@pytest.mark.parametrize(("own", "described"), [("auto", "bf16"), ("fp8_e5m2", "f8e5m2"), (None, "f8e4m3")])
def test_layers_of_a_dtype_of_their_own(connector, own, described):
    """vLLM may leave layers out of what ``--kv-cache-dtype`` says."""
    from transload.vllm.specs import describe

    config = vllm.vllm_config(backends={"model.layers.0.attn": "FLASH_ATTN"}, cache_dtype="fp8")
    config.compilation_config.static_forward_context["model.layers.0.attn"].kv_cache_dtype = own
    dtype, mode = (torch.bfloat16, 0) if own == "auto" else (torch.uint8, 1)
    spec = vllm.FullAttentionSpec(32, num_kv_heads=4, head_size=32, dtype=dtype, kv_quant_mode=vllm.KVQuantMode(mode))
    assert describe(config, spec, "model.layers.0.attn").specs[0]["dtype"] == described


def test_a_gpu_whose_driver_knows_no_such_memory(connector, engine):
    """Or where there is no driver at all."""
    with pytest.raises(transload.CacheMemoryError, match="CUDA|cuda:0"):
        engine("prefill", storage=on("cuda"))


@pytest.mark.parametrize("isa", ["amx", "vec16", "neon"])
def test_processors_that_order_blocks_otherwise(connector, engine, monkeypatch, isa):
    monkeypatch.setattr(vllm, "attn_isa", isa)
    prefill, decode = (engine(name, backend="CPU_ATTN") for name in ("prefill", "decode"))
    move(prefill, decode, prompt(100))
    monkeypatch.setattr(vllm, "attn_isa", "other")
    decode = engine("decode", backend="CPU_ATTN")
    refuse(decode, prompt(100), prefilled(prefill, prompt(100)), "incompatible")


def test_a_cache_that_is_not_one_tensor(connector, engine):
    prefill = engine("prefill")
    tensors = dict(prefill.caches[0].tensors)
    tensors["model.layers.1.attn"] = [1, 2]
    with pytest.raises(NotImplementedError, match="layers.1.attn: its cache is a list, not one tensor"):
        prefill.workers[0].register_kv_caches(tensors)


def lying_otherwise(number, axis=None, step=0, blocks=None):
    """Changes where a layer's blocks, heads, states or elements are said to be, by `step` elements of 4 bytes."""

    def change(tensors):
        name = f"model.layers.{number}.attn"
        old = tensors[name]
        strides = [stride * 4 for stride in old.stride()]
        if axis is not None:
            strides[axis] += 4 * step
        shape = (blocks or old.shape[0], *old.shape[1:])
        tensors[name] = torch.Tensor(old._storage, old.dtype, shape, strides, old._offset)

    return change


def twice(tensors):
    tensors["model.layers.0.cross.attn"] = torch.Tensor(
        torch.Storage(tensors["model.layers.0.attn"]._storage.array.copy()),
        torch.float32, (64, 4, 32, 64), (32768, 8192, 256, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lying_otherwise(0, axis=3, step=1), "layers.0.attn: the elements of a state are not neighbours"),
        (lying_otherwise(0, axis=2, step=1), "layers.0.attn: 260 B from one S to the next, where 256 B are one"),
        (lying_otherwise(0, axis=1, step=8), "layers.0.attn: 8224 B from one H to the next, where 8192 B are one"),
        (lying_otherwise(0, axis=0, step=-16), "layers.0.attn: 32704 B from one B to the next, where 32768 B are one"),
        (lying_otherwise(0, blocks=65), "layers.0.attn: 65 blocks of the kernels for 64 of the manager"),
        (twice, "layers.*: several caches of one layer cannot be told apart"),
    ],
)
def test_layouts_that_cannot_be_told(connector, engine, change, message):
    prefill = engine("prefill", [Attention(range(1))])
    worker = prefill.workers[0]._worker
    tensors = dict(prefill.caches[0].tensors)
    change(tensors)
    backend = worker._vllm_config.compilation_config.static_forward_context["model.layers.0.attn"]
    worker._vllm_config.compilation_config.static_forward_context = dict.fromkeys(tensors, backend)
    worker._kv_cache_config.kv_cache_groups[0].layer_names = list(tensors)
    with pytest.raises(NotImplementedError, match=message):
        worker.register(tensors)
