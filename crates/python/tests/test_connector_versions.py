"""vLLM's connector: versions of vLLM that nothing was run with, and what is done without where one has less."""

import contextlib
import importlib
import sys

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, move, prefilled, prompt
from vllm_stand_in.installed import installed
from vllm_stand_in.model import Attention, mamba2

TOKENS = prompt(100)
UNTESTED = "tested with vLLM 0.32 and 0.33; nothing was run with this version, "


@pytest.mark.parametrize(("version", "is_told"), [("0.32.1", False), ("0.33.0rc1", False), ("dev", False), ("0.1.dev1+gabc", False),
                                                  ("0.31.2", True), ("0.34.0", True), ("1.0.0", True)])  # fmt: skip
def test_versions_of_vllm(connector, monkeypatch, caplog, version, is_told):
    import vllm as of_vllm
    from transload.vllm import versions

    monkeypatch.setattr(of_vllm, "__version__", version)
    versions.check()
    assert bool(caplog.records) == is_told == (UNTESTED + version in caplog.text)


def test_a_name_that_there_has_to_be():
    words = r"cannot work with vLLM 0.32.0 \(.*vllm.v1.request.*\): it is tested with vLLM 0.32 and 0.33; install one of those"
    with pytest.raises(ImportError, match=words), installed(absent=["vllm.v1.request"]):
        pass


def test_what_is_missing_elsewhere_is_not_vllms(monkeypatch):
    monkeypatch.setitem(sys.modules, "transload._digests", None)
    with pytest.raises(ImportError) as raised, installed():
        pass
    assert "vLLM" not in str(raised.value)


def test_names_that_there_need_not_be():
    with installed(absent=["vllm.v1.metrics.cache_hit_source", "vllm.lora.worker_manager"]) as package:
        assert package.TransloadConnector._cache_hit_source is None
        importlib.import_module("transload.vllm.adapters").watch()


@pytest.fixture
def without(connector, monkeypatch):
    """Takes a method from vLLM's engine, or gives it another first argument."""

    @contextlib.contextmanager
    def take(owner, name, method=None):
        with monkeypatch.context() as patched:
            if method is None:
                patched.delattr(owner, name)
            else:
                patched.setattr(owner, name, method)
            yield

    return take


def gets_ticket(engine, **more):
    request = engine.add(TOKENS, dict(FOR_DECODE), **more)
    engine.run(lambda: request.request_id in engine.answers)
    return bool(engine.answers[request.request_id])


def test_an_engine_that_does_not_tell_of_changes(engine, without, caplog):
    with without(vllm.EngineCore, "collective_rpc"):
        told = engine("prefill")
        assert not gets_ticket(told)
        assert "this vLLM does not tell when weights may change in place: unless reset_keeps_weights says" in caplog.text
        # Nor does a name help, since another change would not be noticed.
        told.core.set_weight_version("step 2")
        assert not gets_ticket(told)
        assert "the weights cannot be named" in caplog.text
        end_alike(told)
        assert gets_ticket(engine("prefill", extra={"reset_keeps_weights": True}))


def test_an_engine_that_does_not_tell_names(engine, without, caplog):
    with without(vllm.EngineCore, "set_weight_version"):
        told = engine("prefill")
        assert gets_ticket(told)
        assert "does not tell what weights are called after they have changed" in caplog.text
        told.core.collective_rpc("load_weights")
        assert not gets_ticket(told)


@pytest.mark.parametrize("kept", [True, False])
def test_an_engine_that_loads_adapters_otherwise(engine, without, caplog, kept):
    """Its method takes something else, so that nobody knows which adapter is replaced."""
    add = vllm.EngineCore.add_lora
    with contextlib.nullcontext() if kept else without(vllm.EngineCore, "add_lora", lambda self, adapter: add(self, adapter)):
        prefill = engine("prefill")
        assert gets_ticket(prefill, adapter="a") == kept
        assert ("does not tell when an adapter is replaced" in caplog.text) != kept
        assert gets_ticket(prefill)


def test_an_engine_that_is_called_with_names(engine):
    """What is followed takes its arguments as vLLM gives them."""
    prefill = engine("prefill")
    prefill.core.collective_rpc(method="load_weights")
    assert not gets_ticket(prefill)
    end_alike(prefill)
    prefill.reset()
    prefill.core.set_weight_version(weight_version="step 2")
    assert gets_ticket(prefill)


def test_an_engine_that_cannot_rest(engine, without, caplog):
    with without(vllm.EngineCoreProc, "_process_input_queue"):
        prefilled(engine("prefill"), TOKENS)
        assert "cannot rest while it only holds blocks" in caplog.text
    caplog.clear()
    prefill = engine("prefill")
    del prefill.core.batch_queue
    prefilled(prefill, TOKENS)
    prefill.core._process_input_queue()
    prefill.core._process_input_queue()
    [record] = [record for record in caplog.records if "cannot rest" in record.getMessage()]
    assert "batch_queue" in record.getMessage()


def test_blocks_that_are_not_counted(engine, monkeypatch, caplog):
    prefill = engine("prefill")
    monkeypatch.delattr(type(prefill.manager), "block_pool")
    assert not prefill.reset()
    assert "whether vLLM's own caches are cleared is not known" in caplog.text


def test_prompts_that_are_kept_elsewhere(two_engines, monkeypatch):
    """Nothing of a prompt can be left to the decode server, so that one with recurrent state is not lent."""
    from vllm_stand_in.request import Request

    groups = [Attention(range(2)), mamba2(range(2, 4))]
    prefill, decode = two_engines({}, {}, groups, model_groups=1)
    move(prefill, decode, TOKENS)
    begin = Request.__init__

    def made(request, *arguments, **more):
        begin(request, *arguments, **more)
        request._all_token_ids = tuple(request._all_token_ids)

    monkeypatch.setattr(Request, "__init__", made)
    request = prefill.add(TOKENS, dict(FOR_DECODE))
    assert request.num_prompt_tokens == len(TOKENS)
    assert not prefill.scheduler._scheduler._lending


def test_layers_that_are_kept_elsewhere(engine, monkeypatch):
    make = vllm.vllm_config

    def made(*arguments, **more):
        config = make(*arguments, **more)
        del config.compilation_config.static_forward_context
        return config

    monkeypatch.setattr(vllm, "vllm_config", made)
    with pytest.raises(NotImplementedError, match="does not tell which attention backend a layer has"):
        engine("prefill")
