"""The example of the guide's page, as it stands there."""

import re
from pathlib import Path

import pytest
import tiny_models
from transload.hf import Reuse

PAGE = (Path(__file__).parents[2] / "docs/src/guide/transformers.md").read_text()


@pytest.mark.smallest
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_models.make("llama").save_pretrained("model")
    tiny_models.tokenizer().save_pretrained("model")
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    told = example.replace("file:///var/kv", f"file://{tmp_path}/kv")
    assert told != example
    names = {}
    exec(told, names)
    assert isinstance(names["reuse"], Reuse)
    stats = names["reuse"].stats()
    assert stats["restored_tokens"] == stats["saved_tokens"] == len(names["handbook"]) // 256 * 256 == 1280
    assert str(stats) in capsys.readouterr().out
    assert names["answer"].shape[1] > len(names["inputs"].input_ids[0])
