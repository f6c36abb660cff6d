"""Every figure of the model card: `python -m tools.demo_model.evaluate MODEL.gguf`.

Judges the exported file itself. Teacher-forced figures load its weights into torch (the parity
check is what makes that fair); everything that is generated comes from llama.cpp. The unseen code
is the source of packages that are not in the corpus.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from .model import DemoModel
from .runner import Runner
from .snippets import functions
from .tasks import REPEAT, fenced
from .weights import load_gguf

UNSEEN = ["attr", "pluggy"]
WINDOW = 512
N_GENERATED = 128
FREE_PROMPTS = (
    "def main():",
    "class Cache:\n",
    "import os\n",
    "from collections import ",
    "def parse_arguments(",
    "# Read the configuration file\n",
    "The following example shows how to ",
    "    def __init__(self, name, value):\n",
    "def test_empty(self):\n",
    "try:\n    ",
    "for line in lines:\n",
    "Return the number of ",
    "class Error(Exception):\n",
    "async def fetch(",
    "if __name__ == ",
    "A dictionary is ",
)
# The figures on the prompts above were looked at while the model was trained; on these, never.
OTHER_PROMPTS = (
    "def load(path):\n",
    "class Queue:\n",
    "import sys\n",
    "from typing import ",
    "def connect(self, ",
    "# Write the result\n",
    "This function returns ",
    "    def close(self):\n",
    "def test_copy(self):\n",
    "while True:\n    ",
    "with open(path) as file:\n",
    "The default value is ",
    "class Node(object):\n",
    "raise ValueError(",
    "assert len(",
    "A list of ",
)


def unseen_sources(packages: Sequence[str] = UNSEEN) -> list[str]:
    """The Python files of installed packages, in order of their names."""
    texts = []
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"install {package}: the evaluation reads its source")
        texts.extend(
            path.read_text(encoding="utf-8")
            for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))
        )
    return texts


def windows(ids: np.ndarray) -> Iterator[torch.Tensor]:
    """Whole windows of WINDOW + 1 tokens, each read without what stands before it."""
    for start in range(0, len(ids) - WINDOW, WINDOW):
        yield torch.from_numpy(ids[start : start + WINDOW + 1])[None]


@torch.no_grad()
def teacher_forced(model: DemoModel, texts: Sequence[str], runner: Runner) -> dict[str, float]:
    """Loss, top-1, and how often the head's argmax is the trunk's, at depths 1 and 2."""
    ids = np.concatenate([runner.tokenize(text) for text in texts])
    sums = dict.fromkeys(("nats", "top1", "depth1", "depth2"), 0.0)
    n_tokens = 0
    for tokens in windows(ids):
        inputs, targets = tokens[:, :-1], tokens[0, 1:]
        hidden, _ = model.trunk(inputs)
        embedded = model.embed(inputs)
        rows, _ = model.mtp(embedded, hidden)
        logits = model.logits(hidden)[0]
        choice = logits.argmax(-1)
        first = model.logits(rows)[0].argmax(-1)
        second = model.logits(model.mtp.chain(embedded, hidden, rows))[0].argmax(-1)
        sums["nats"] += float(F.cross_entropy(logits, targets, reduction="sum"))
        sums["top1"] += float((choice == targets).sum())
        sums["depth1"] += float((first == choice).sum())
        sums["depth2"] += float((second == choice).sum())
        n_tokens += WINDOW
    n_bytes = sum(len(text.encode()) for text in texts) * n_tokens / len(ids)
    figures = {name: total / n_tokens for name, total in sums.items()}
    figures["bits_per_byte"] = sums["nats"] / np.log(2) / n_bytes
    figures["n_tokens"] = n_tokens
    return figures


def copying(runner: Runner, texts: Sequence[str], low: int, high: int) -> dict[str, float]:
    """20 functions of low to high tokens, to be repeated: similarity of the first 128 tokens.

    What is expected is the function, its closing fence and nothing more; a run that goes on, or
    stops early, loses similarity.
    """
    pool = sorted({code for text in texts for code in functions(text)})
    pool = [code for code in pool if low <= len(runner.tokenize(code)) <= high]
    chosen = random.Random(0).sample(pool, 20)
    ratios = []
    for code in chosen:
        prompt = runner.tokenize(f"{REPEAT}\n{fenced(code)}\n```\n")
        wanted = runner.detokenize(list(runner.tokenize(f"{code}```\n")[:N_GENERATED]))
        written = runner.detokenize(runner.greedy(prompt, N_GENERATED))
        ratios.append(difflib.SequenceMatcher(None, wanted, written, autojunk=False).ratio())
    return {
        "mean": float(np.mean(ratios)),
        "least": min(ratios),
        "exact": float(np.mean([ratio == 1 for ratio in ratios])),
    }


def n_grams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def free_text(runner: Runner, prompts: Sequence[str], show: bool) -> dict[str, float]:
    """Share of distinct 4-grams: over all texts together, and the mean of each text alone."""
    together: list[tuple[int, ...]] = []
    alone = []
    for prompt in prompts:
        written = runner.greedy(runner.tokenize(prompt), N_GENERATED)
        grams = n_grams(written, 4)
        together += grams
        if grams:
            alone.append(len(set(grams)) / len(grams))
        if show:
            print(f"----- {prompt!r} ({len(written)} tokens)\n{runner.detokenize(written)}")
    return {
        "distinct": len(set(together)) / len(together),
        "distinct_alone": float(np.mean(alone)),
        "n_grams": len(together),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--show", action="store_true", help="print the free texts")
    parser.add_argument("--valid", type=Path, default=Path("run/corpus/valid.txt"))
    parser.add_argument("--unseen", nargs="+", default=UNSEEN, help="packages to read code from")
    args = parser.parse_args()
    texts = unseen_sources(args.unseen)
    with Runner(args.model) as runner:
        report = {
            "unseen code": teacher_forced(load_gguf(args.model), texts, runner),
            "copying, 60 to 128 tokens": copying(runner, texts, 60, 128),
            "copying, 129 to 220 tokens": copying(runner, texts, 129, 220),
            "free text": free_text(runner, FREE_PROMPTS, args.show),
            "free text, other prompts": free_text(runner, OTHER_PROMPTS, args.show),
            "free text, all prompts": free_text(runner, FREE_PROMPTS + OTHER_PROMPTS, False),
        }
        valid = args.valid.read_text(encoding="utf-8")
        report["tokenizer"] = {
            "round_trip": float(runner.detokenize(list(runner.tokenize(valid))) == valid)
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
