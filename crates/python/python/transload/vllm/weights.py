"""Gives the weights of a model a name that no other weights have.

They are named by the operator, by a commit of the hub, or by a digest of all that their files hold, which is read in the
background. Until there is a name, nothing that was computed with them may be taken for anything.

vLLM can change weights in place. Files and settings name what it has loaded, not what it computes with after that, so from
then on only the operator can name them, with the version that vLLM itself takes (``/update_weight_version``).
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from vllm.logger import init_logger

try:
    from vllm.transformers_utils.config import iter_rope_parameters
except ImportError:
    # Before 0.32.
    iter_rope_parameters = None  # type: ignore[assignment]

from .. import _weights
from .._digests import Stopped, look
from .config import BEFORE, Before, ConfigError

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

logger = init_logger("vllm." + __name__)

FROM_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral")
"""Values of vLLM's ``--load-format`` with which weights come from the files in the model's folder, and all of them."""
NAME_THEM = (
    "give kv_connector_extra_config.model and store_weights, or weights of a tier, a text of your own that is another for other weights"
)


class Unnamed(Exception):
    """Raised if what computes a request has no name. The message says why."""


class Weights:
    """Knows the name of the weights that an engine computes with. It is in the scheduler."""

    def __init__(self, vllm_config: VllmConfig, *, is_asked: bool) -> None:
        """`is_asked`: whether a name is needed although none was given."""
        self._files = _Files(vllm_config) if is_asked else None
        self._version: str | None = None
        self._pending: str | None = None
        self._lost = self._distrusted = ""
        self._is_used = self._is_stale = False
        self.epoch = os.urandom(16)
        """Random bytes that change whenever the weights may change. Work begun in one epoch must not be used in another."""

    def name(self, given: str | None) -> str:
        """Returns the weights' name; `given` is the one in the settings.

        Raises:
            Unnamed: they have none now.
        """
        if self._distrusted:
            raise Unnamed(self._distrusted)
        if self._version is not None:
            return self._version
        if self._lost:
            raise Unnamed(self._lost)
        if given:
            return given
        assert self._files is not None
        return self._files.name()

    def distrust(self, why: str) -> None:
        """Makes all names invalid, including given ones."""
        self._distrusted = why
        if self._files is not None:
            self._files.stop()

    def computes(self) -> None:
        """Takes note that vLLM computes something, which its own caches keep."""
        self._is_used = True

    def change(self) -> None:
        """Takes their name away: vLLM changes the weights in place."""
        # What its caches keep of before would be taken for what the new ones compute.
        self._is_stale |= self._is_used
        self._is_used = False
        self._version = self._pending = None
        self._lose("vLLM has changed the weights in place")

    def clear(self, *, is_whole: bool, keeps_weights: bool) -> bool:
        """Returns whether the weights have a name now that vLLM clears its caches, as it does before weights change or after;
        `is_whole` if none of the caches keeps anything."""
        if is_whole:
            self._is_used = self._is_stale = False
        elif not keeps_weights:
            self._is_stale = True
        if self._pending is not None and not self._is_stale:
            pending, self._pending = self._pending, None
            self._call(pending)
        elif not keeps_weights:
            self._version = None
            self._lose("vLLM has cleared its caches, as it does where weights change in place")
        return not self._lost

    def call(self, version: str) -> None:
        """Gives the weights the name that the operator says."""
        if not version:
            logger.error("the weights cannot be named '': nothing is changed")
            return
        if self._distrusted:
            logger.error("the weights cannot be named: %s", self._distrusted)
            return
        if not self._lost and version != self._version:
            self.change()
        if self._is_stale:
            self._pending = version
            logger.warning(
                "the weights are called %r, but vLLM's caches hold what others have computed: tickets and the store rest "
                "until it clears them (POST /reset_prefix_cache?reset_external=true)",
                version,
            )
            return
        self._call(version)

    def _call(self, version: str) -> None:
        logger.info("the weights are called %r: tickets and the store go on", version)
        self._version, self._lost, self.epoch = version, "", os.urandom(16)

    def _lose(self, why: str) -> None:
        if self._files is not None:
            self._files.stop()
        if not self._lost:
            logger.warning(
                "%s: tickets and the store rest until they are named (POST /update_weight_version, the same on all servers "
                "with the same weights)",
                why,
            )
        self._lost, self.epoch = f"{why}, and nobody has named them since", os.urandom(16)

    def shutdown(self) -> None:
        if self._files is not None:
            self._files.stop()


class _Files:
    """Finds the name of weights in files: a commit, or a digest that is read in the background."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        found = (vllm_config.kv_transfer_config.kv_connector_extra_config or {}).get(BEFORE)
        # Where nobody has looked before, vLLM may have loaded other files than are there now.
        self._before = found if isinstance(found, Before) else {"files": _seen(vllm_config.model_config)}
        self._name: str | None = None
        self._why = ""
        self._stop = threading.Event()
        load_format, model = vllm_config.load_config.load_format, vllm_config.model_config
        if load_format not in FROM_FILES:
            self._give_up(f"--load-format {load_format} takes weights from elsewhere than the files of the model")
        elif _commit(model) is not None:
            # A commit is no work; what is in the settings may still be without a name.
            try:
                self._name = weights_of(model, before=self._before)
            except ConfigError as error:
                self._give_up(str(error))
        else:
            size = sum(path.stat().st_size for path in _weight_files(model)) / 1e9
            self._why = f"the weight files are being read ({size:.1f} GB)"
            logger.info(
                "the weights are told apart by all that is in their files (%.1f GB), which are read now: until that is done "
                "there are no tickets, and nothing is saved or loaded",
                size,
            )
            _weights.read_in_background(lambda: self._read(model))

    def name(self) -> str:
        """Returns the weights' name.

        Raises:
            Unnamed: it is not known, or not yet.
        """
        if self._name is None:
            raise Unnamed(self._why)
        return self._name

    def stop(self) -> None:
        self._stop.set()

    def _read(self, model: ModelConfig) -> None:
        begun = time.monotonic()
        try:
            self._name = weights_of(model, self._stop.is_set, self._before)
        except Stopped:
            self._why = "nobody waits for the weight files to be read any more"
        except Exception as error:  # noqa: BLE001: whatever it is, it leaves the weights without a name.
            self._give_up(str(error))
        else:
            logger.info("the weights are %s; reading them took %.1f s", self._name, time.monotonic() - begun)

    def _give_up(self, why: str) -> None:
        self._why = why
        logger.warning("%s: there are no tickets, and nothing is saved or loaded; %s", why, NAME_THEM)


def before_loading(model: ModelConfig) -> Before:
    """Records what `weights_of` needs to know of a model as it was before vLLM loaded it.

    Its files may be replaced after vLLM has loaded them. And with ``--max-model-len auto`` vLLM makes the rotary embeddings for one
    length, and later reduces the length to what fits in memory.
    """
    return Before(files=_seen(model), max_model_len=model.max_model_len)


def weights_of(model: ModelConfig, stop: Callable[[], bool] = lambda: False, before: dict[str, Any] | None = None) -> str:
    """Returns a text that all servers with these weights have, and no others.

    It is the commit if the model was loaded from a hub, otherwise a digest of all that its weight files hold and of its
    config; and with it what the server was told to do otherwise. `before` is what `before_loading` has found, as far as somebody has
    looked.

    Raises:
        ConfigError: nothing is there that tells them apart.
        OSError: a file cannot be read, or has changed meanwhile.
        Stopped: `stop` has returned true.
    """
    before = before or {}
    _refuse_other_files(model, before)
    name = f"{_commit(model) or _content(model, stop)}-{_settings(model, before.get('max_model_len'))}"
    _refuse_other_files(model, before)
    return name


def _refuse_other_files(model: ModelConfig, before: dict[str, Any]) -> None:
    if before.get("files", now := _seen(model)) != now:
        raise ConfigError(
            f"files of weights or the config in {model.model!r} were changed, added or removed since this server started, so that "
            f"they may not be what it has loaded: start it again, or {NAME_THEM}"
        )


def _seen(model: ModelConfig) -> str:
    """Returns a digest that changes whenever the model's files are replaced or changed, without reading them."""
    configs = (Path(folder) / "config.json" for folder in (model.model, model.hf_config_path) if folder)
    files = [*_weight_files(model), *(path for path in configs if path.is_file())]
    return hashlib.blake2b(repr([(str(path), look(path)) for path in files]).encode(), digest_size=20).hexdigest()


def _content(model: ModelConfig, stop: Callable[[], bool]) -> str:
    files = _weight_files(model)
    if not files:
        raise ConfigError(f"nothing in {model.model!r} tells these weights apart from others of their name; {NAME_THEM}")
    return _weights.content(Path(model.model), files, stop)


def _settings(model: ModelConfig, length: int | None) -> str:
    """Returns a digest of the settings that override the model's files: another config, overrides, quantization, and, with LongRoPE, how
    the longest sequence's keys are rotated."""
    if callable(model.hf_overrides):
        raise ConfigError(f"hf_overrides is a function, and what one does cannot be compared: give a dict, or {NAME_THEM}")
    return _weights.settings(model.hf_overrides, model.quantization, _rotated_far(model, length), _given_config(model))


def _rotated_far(model: ModelConfig, length: int | None) -> list[bool]:
    """Returns, for each LongRoPE of the model, whether all keys are rotated by the factors for long sequences. vLLM takes them
    where
    the server may have such sequences, however short those are that come: by the longest that it knew of when it made them."""
    if iter_rope_parameters is None:
        raise ConfigError(f"how keys are rotated is not told by this version of vLLM; {NAME_THEM}")
    long = [rope for rope in iter_rope_parameters(model.hf_text_config) if rope.get("rope_type") == "longrope"]
    fitted = length is None and getattr(model, "original_max_model_len", None) == -1
    known = model.max_model_len if length is None else length
    far = [known > rope["original_max_position_embeddings"] for rope in long]
    # What was fitted is shorter than what was before, never longer.
    if fitted and not all(far):
        raise ConfigError(
            "which factors of LongRoPE vLLM has taken with --max-model-len auto is not known, since nobody looked before it loaded the "
            f"model: give a number, or {NAME_THEM}"
        )
    return far


def _commit(model: ModelConfig) -> str | None:
    """Returns the commit that all of the model is of. That of ``--revision`` says nothing of a folder of files."""
    if _weight_files(model):
        return None
    # vLLM resolves a branch once: the text is still the branch's name.
    commit = getattr(model.revision, "resolved", model.revision)
    return commit if commit and _weights.COMMIT.fullmatch(commit) else None


def _weight_files(model: ModelConfig) -> list[Path]:
    return _weights.weight_files(Path(model.model))


def _given_config(model: ModelConfig) -> bytes:
    """Returns the config of ``--hf-config-path``, which takes the place of the model's own, also where that is of a commit."""
    if not model.hf_config_path:
        return b""
    config = _weights.config(Path(model.hf_config_path))
    if not config:
        raise ConfigError(f"--hf-config-path {model.hf_config_path} is no folder with a config.json: give one, or {NAME_THEM}")
    return config
