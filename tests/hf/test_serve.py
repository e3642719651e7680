"""transformers' own server with reuse, over HTTP, with OpenAI's client."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import tiny_models
from openai import OpenAI

PROMPT = "a store keeps what a model has computed, so that nobody computes it again. " * 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    tiny_models.make("llama").save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    return folder


class Server:
    def __init__(self, log, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "transload.hf.serve", *map(str, arguments)]
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)], stdout=out, stderr=subprocess.STDOUT
            )

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read())

    def wait(self, seconds=180):
        end = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()[-4000:]
            try:
                self.call("/health")
                return self
            except OSError:
                time.sleep(0.3)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def serve(model, tmp_path):
    started = []

    def begin(*arguments):
        started.append(Server(tmp_path / f"server-{len(started)}.log", model, "--store", f"file://{tmp_path}/kv", *arguments))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


def test_answers_are_the_same_and_prefixes_are_restored(serve, model):
    server = serve().wait()
    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    asked = dict(model=str(model), temperature=0.0, max_tokens=8)
    messages = [{"role": "user", "content": PROMPT}]
    first = client.chat.completions.create(messages=messages, **asked)
    assert server.call("/v1/stats")["restored_tokens"] == 0
    streamed = client.chat.completions.create(messages=messages, stream=True, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == first.choices[0].message.content
    stats = server.call("/v1/stats")
    assert stats["restored_tokens"] == 512 and stats["failures"] == 0 and not stats["not_reused"]

    whole = client.completions.create(prompt=PROMPT, **asked).choices[0].text
    server.stop()
    # Another process finds it.
    server = serve().wait()
    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    assert client.completions.create(prompt=PROMPT, **asked).choices[0].text == whole
    assert server.call("/v1/stats")["restored_tokens"] == 512


def test_what_is_warmed_is_restored_for_the_first_request(serve, model):
    server = serve().wait()
    assert server.call("/v1/warm", {"prompt": PROMPT})["saved"] == 512
    assert server.call("/v1/warm", {"messages": [{"role": "user", "content": PROMPT}]})["saved"] == 512
    with pytest.raises(urllib.error.HTTPError, match="422"):
        server.call("/v1/warm", {"text": PROMPT})
    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    client.completions.create(prompt=PROMPT, model=str(model), max_tokens=2)
    assert server.call("/v1/stats")["restored_tokens"] == 512


@pytest.mark.parametrize(
    "option, said",
    [("--continuous-batching", "--continuous-batching"), ("--sharing=all", "write any, engine or version"),
     ("--store=nonsense://kv", "`nonsense` is not a built-in scheme")],
)
def test_what_cannot_work_is_refused_by_name(serve, option, said):
    server = serve(option)
    assert server.process.wait(120) != 0
    assert said in server.log.read_text() and "Traceback" not in server.log.read_text()
