"""Runs transformers' own server, whose model restores what is saved: `python -m transload.hf.serve MODEL --store URI`.

Everything else on the command line is that of `transformers serve`. Beside its routes there are:

    GET /v1/stats   what `Reuse.stats` says
    POST /v1/warm   {"prompt": "..."} or {"messages": [...]}: saves that beginning before a request needs it
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastapi import HTTPException
from transformers.cli.serving import model_manager, server
from transformers.cli.transformers import app as command

from .. import StoreError
from . import Reuse, UnsupportedCache

_build_server = server.build_server


class ModelManager(model_manager.ModelManager):
    """Loads models as before, and attaches reuse to the one that is served."""

    options: argparse.Namespace
    reuse: Reuse | None = None

    def __init__(self, *args: Any, continuous_batching: bool = False, force_model: str | None = None, **more: Any) -> None:
        if continuous_batching:
            sys.exit("--continuous-batching does not call generate, so nothing could be restored: leave it out")
        if force_model is None:
            sys.exit("give MODEL: prefixes are kept for one model")
        super().__init__(*args, force_model=force_model, **more)

    def load_model_and_processor(self, model_id: str, *args: Any, **more: Any) -> tuple[Any, Any]:
        model, self.processor = super().load_model_and_processor(model_id, *args, **more)
        if self.reuse is None or self.reuse.model is not model:
            try:
                self.reuse = Reuse(model, **vars(self.options) | {"name": self.options.name or self.force_model})
            except (UnsupportedCache, ValueError, StoreError) as why:
                sys.exit(f"{self.force_model}: {why}")
            self.reuse.attach()
            self.model_id = model_id
        return model, self.processor


def build_server(manager: ModelManager, chat_handler: Any, *args: Any, generation_state: Any, **more: Any) -> Any:
    """Builds transformers' application with two more routes."""
    app = _build_server(manager, chat_handler, *args, generation_state=generation_state, **more)

    @app.get("/v1/stats")
    def stats() -> dict[str, Any]:
        return manager.reuse.stats()

    @app.post("/v1/warm")
    async def warm(body: dict[str, Any]) -> dict[str, int]:
        if isinstance(body.get("prompt"), str):
            ids = manager.processor(body["prompt"])["input_ids"]
        elif isinstance(body.get("messages"), list):
            chat = chat_handler.chat_template_kwargs | {"return_dict": True}
            ids = manager.processor.apply_chat_template(body["messages"], **chat)["input_ids"]
        else:
            raise HTTPException(422, "give `prompt`, a text, or `messages`, a list")
        thread = generation_state.get_manager(manager.model_id)  # the one that computes requests
        return {"tokens": len(ids), "saved": await thread.async_submit(manager.reuse.warm, ids)}

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m transload.hf.serve", usage="%(prog)s MODEL --store URI [OPTION]...")
    parser.add_argument("--store", required=True, metavar="URI", help="where prefixes are kept")
    for option, default in {"name": None, "weights": None, "codec": "exact", "save": "prompt", "sharing": "version"}.items():
        parser.add_argument(f"--{option}", default=default, help="as for transload.hf.Reuse")
    ModelManager.options, others = parser.parse_known_args()
    # `transformers serve` takes both from their modules when it starts.
    model_manager.ModelManager, server.build_server = ModelManager, build_server
    command(["serve", *others])
