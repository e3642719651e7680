"""How near blends come to what a model says, and how soon::

    python tests/hf/quality.py small [--prompts 100] [--json FILE]
    python tests/hf/quality.py model --gguf FILE [--prompts 100] [--json FILE]
    python tests/hf/quality.py pictures FOLDER FILE.json...

`small` trains a model of 0.5 million parameters on texts of random statistics: minutes. `model` takes a file of yours, and the
documentation of Python as text. `pictures` draws what both have measured. Every prompt is four passages that follow each other in one
text, and the tokens behind them, which are scored: KL in nats from what the model says that computes everything, and how often both
say the same.
"""

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from transload.hf import Reuse
from transload.hf.blend import Blend, Prompt, divergence

SHARES, SELECTS = (0.08, 0.15, 0.30), ("first", "deviation", "random")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(dest="command", required=True)
    for name in ("small", "model"):
        command = commands.add_parser(name)
        command.add_argument("--prompts", type=int, default=100)
        command.add_argument("--rounds", type=int, default=7, help="of each time to the first token")
        command.add_argument("--json", type=Path)
        if name == "model":
            command.add_argument("--gguf", type=Path, required=True)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    if given.command == "small":
        model, texts, lengths = trained(), drawn_texts(2, given.prompts, 192), (24, 40, 40, 40, 48)
    else:
        model, tokenizer = load(given.gguf)
        lengths = (24, 128, 128, 128, 48)
        texts = documentation(tokenizer, given.prompts, sum(lengths))
    blend = Measuring(model, f"file://{tempfile.mkdtemp()}")
    for done, found in quality(blend, texts, lengths):
        print(f"{done} prompts", file=sys.stderr, flush=True)
        if given.json:
            given.json.write_text(json.dumps({"model": given.command, "prompts": done, "quality": found}, indent=1))
    for name, (kl, top1) in found.items():
        print(f"{name:32} KL {kl:.4f}  top-1 {top1:.1%}")


# --- models and texts ----------------------------------------------------------------------

SYMBOLS = 64


def drawn_texts(seed: int, count: int, length: int) -> torch.Tensor:
    """Texts that say nothing but how they go on: behind each symbol follow three, which are drawn for each text, at 75, 20 and 5 %."""
    draw = torch.Generator().manual_seed(seed)
    follow = torch.randint(SYMBOLS, (count, SYMBOLS, 3), generator=draw)
    which = torch.multinomial(torch.tensor([0.75, 0.2, 0.05]), count * length, replacement=True, generator=draw).view(count, length)
    texts = torch.randint(SYMBOLS, (count, length), generator=draw)
    for at in range(1, length):
        texts[:, at] = follow[torch.arange(count), texts[:, at - 1], which[:, at]]
    return texts


def trained(steps: int = 500) -> LlamaForCausalLM:
    """A small Llama that has learned to find in a text how it goes on."""
    torch.manual_seed(0)
    shape = dict(hidden_size=96, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=24)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=SYMBOLS, max_position_embeddings=1024, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        texts = drawn_texts(1000 + step, 16, 192)
        loss = model(input_ids=texts, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return model.eval()


def load(gguf: Path):
    where = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(**where)


def documentation(tokenizer, count: int, length: int) -> torch.Tensor:
    """Pieces of what Python says about itself."""
    from pydoc_data.topics import topics

    texts = []
    for topic in sorted(topics):
        ids = tokenizer(topics[topic])["input_ids"]
        texts += [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
    random.Random(0).shuffle(texts)
    if len(texts) < count:
        sys.exit(f"there are {len(texts)} texts of {length} tokens, not {count}")
    return torch.tensor(texts[:count])


# --- quality -------------------------------------------------------------------------------


class Measuring(Blend):
    """Blends that may choose at random, or not rotate, and compute a passage once."""

    def __init__(self, model, store: str) -> None:
        super().__init__(Reuse(model, store, name="measured", weights="any", save=None), max_kl=math.inf)
        self.right, self.kept, self.drawn = self._rotations, {}, random.Random(0)

    def _encoded(self, passage):
        if tuple(passage) not in self.kept:
            self.kept[tuple(passage)] = super()._encoded(passage)
        return self.kept[tuple(passage)]

    def _chosen(self, cache, prompt, share, select):
        if select != "random":
            return super()._chosen(cache, prompt, share, select)
        behind = range(prompt.starts[1], prompt.starts[-1])
        return torch.tensor(sorted(self.drawn.sample(behind, round(share * prompt.starts[-1]))))

    def not_rotated(self, prompt) -> torch.Tensor:
        self._rotations = [lambda rows, by: rows] * len(self.right)
        logits = self.logits(prompt, 0, "first")
        self._rotations = self.right
        return logits


def quality(blend: Measuring, texts: torch.Tensor, lengths) -> Iterator[tuple[int, dict[str, tuple[float, float]]]]:
    """Means so far of KL and agreement, each time that ten more prompts are done."""
    sums: dict[str, torch.Tensor] = {}
    for done, text in enumerate(texts, 1):
        *passages, question = (part.tolist() for part in text.split(lengths))
        prompt = Prompt(passages, question)
        exact = blend.logits(prompt, 1, "first")
        said = {"left out": blend._reuse.forward(question, blend._reuse._cache(0), logits_to_keep=0)}
        said |= {"not rotated": blend.not_rotated(prompt), "rotated": blend.logits(prompt, 0, "first")}
        for share, select in itertools.product(SHARES, SELECTS):
            said[f"{select} {share:.0%}"] = blend.logits(prompt, share, select)
        for name, logits in said.items():
            same = (exact.argmax(-1) == logits.argmax(-1)).double().mean()
            sums[name] = sums.get(name, 0) + torch.stack([divergence(exact, logits).mean(), same])
        blend.kept.clear()
        if done % 10 == 0 or done == len(texts):
            yield done, {name: tuple((each / done).tolist()) for name, each in sums.items()}


if __name__ == "__main__":
    main()
