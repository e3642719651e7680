"""What cannot work is refused before a model is loaded."""

import pytest
from servers import Server, connector


def test_refused_before_the_model_is_loaded(models, tmp_path):
    nowhere = connector("kv_producer", tmp_path / "nowhere")
    within = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [nowhere]}}
    setting = connector("kv_producer", None, store=f"file://{tmp_path}/kv", mode="pul")
    missing = f"no certificate for 'prefill' .*`transload certs add {tmp_path}/nowhere prefill="
    for name, transfer, words in (
        ("setting", setting, "extra_config.mode is 'pul': give pull or push"),
        ("certificate", within, missing),
    ):
        with Server(models("llama"), tmp_path, name, transfer=transfer) as server:
            with pytest.raises(RuntimeError, match=words):
                server.wait()
            log = server.log.read_text()
            assert "EngineCore" not in log and "load model" not in log and "weights took" not in log, log
