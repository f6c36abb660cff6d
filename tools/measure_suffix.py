"""How often bmoe-suffix and bmoe-ngram draft, and how often they are right.

Counts, not times: they do not depend on the machine, but for near ties of quantised weights.
python tools/measure_suffix.py MODEL; without MODEL it is the demo model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bmoe_core import LlamaModel, LlamaTarget, Summary, Tally, generate, open_source
from bmoe_core.models import demo_model

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
# The example need not be installed.
sys.path.insert(0, str(EXAMPLES / "bmoe_suffix"))

from bmoe_ngram import NgramSource  # noqa: E402
from bmoe_suffix import SuffixSource  # noqa: E402
from bmoe_suffix.memory import Memory  # noqa: E402

N_CTX = 1024
WIDTHS = (3, 8)
SOURCES: dict[str, Callable[[], Any]] = {"ngram": NgramSource, "suffix": SuffixSource}


def main() -> None:
    """Print the table of counts, then what reading and drafting cost over a long history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file")
    parser.add_argument("-n", type=int, default=256, help="most tokens an answer")
    arguments = parser.parse_args()
    copy = "copy-prompt.txt" if arguments.model else "demo-prompt.txt"
    # Prompts are run one after the other by one source; the last one counts.
    tasks = {
        "copy": [copy],
        "code edit": ["edit-prompt.txt"],
        "a similar edit after it": ["edit-prompt.txt", "similar-prompt.txt"],
        "the same edit again": ["edit-prompt.txt", "edit-prompt.txt"],
        "prose": ["prose-prompt.txt"],
    }
    print("| task | draft | source | acceptance | tokens per verify decode | coverage |")
    print("|---|---|---|---|---|---|")
    with (
        LlamaModel(arguments.model or demo_model()) as model,
        LlamaTarget(model, n_ctx=N_CTX, max_draft=max(WIDTHS), n_threads=1) as target,
    ):
        for task, prompts in tasks.items():
            for width in WIDTHS:
                for name, make_source in SOURCES.items():
                    summary = last_of(target, prompts, make_source(), width, arguments.n)
                    print(row(task, width, name, summary))
    print_costs()


def last_of(
    target: LlamaTarget, prompts: list[str], plugin: Any, width: int, n_predict: int
) -> Summary:
    """The figures of the last of several generations by one source."""
    source = open_source(plugin)
    for prompt in prompts:
        target.clear()
        tally = Tally()
        tokens = target.tokenize((EXAMPLES / prompt).read_text())
        for step in generate(
            target, tokens, source=source, n_predict=n_predict, width=width, strict=True
        ):
            tally.add(step)
    source.close()
    return tally.summary


def row(task: str, width: int, name: str, summary: Summary) -> str:
    """One line of the table."""
    acceptance = "—" if summary.acceptance is None else f"{summary.acceptance:.1%}"
    cells = [
        *(task, str(width), name),
        f"{summary.n_accepted}/{summary.n_drafted} = {acceptance}",
        f"{summary.tokens_per_verify_decode:.2f}",
        f"{summary.coverage:.1%}",
    ]
    return "| " + " | ".join(cells) + " |"


def print_costs() -> None:
    """Microseconds a token and a draft, and states, over 32768 tokens of several kinds."""
    n = 32768
    random = np.random.default_rng(0)
    texts = {
        "every token drawn from 49152": random.integers(0, 49152, n),
        "tokens by Zipf's law, as in prose": random.zipf(1.3, n) % 49152,
        "a phrase of 100 tokens over and over": np.arange(n) % 100,
        "one token over and over": np.zeros(n, np.int64),
    }
    print("\n| 32768 tokens: | µs to read a token | longest, ms | µs a draft | states a token |")
    print("|---|---|---|---|---|")
    for name, text in texts.items():
        source = SuffixSource(remember=2 * n)
        took = []
        for i, token in enumerate(text[:-1].astype(np.int32)):
            started = time.perf_counter()
            source.observe(np.array([token]), i)
            took.append(time.perf_counter() - started)
        history = text.astype(np.int32)
        started = time.perf_counter()
        for _ in range(1000):
            source.draft(history, 8)
        draft_us = (time.perf_counter() - started) * 1000
        memory: Memory = source._memory
        print(
            f"| {name} | {1e6 * sum(took) / n:.1f} | {1e3 * max(took):.1f} | {draft_us:.1f} "
            f"| {memory.elder.n_states / n:.2f} |"
        )


if __name__ == "__main__":
    main()
