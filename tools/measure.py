"""What the loop and the lookup cost on this machine; `bmoe bench` measures what drafting gains.

Every comparison is interleaved in one process and quoted as a ratio, with the spread of the
repeated baseline beside it. Run it on a quiet machine: python tools/measure.py MODEL
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from bmoe_core import LlamaModel, LlamaTarget, generate, open_source

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
N_CTX = 2048


def main() -> None:
    """Run both measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-n", type=int, default=128, help="tokens a run")
    arguments = parser.parse_args()
    load = psutil.getloadavg()[0]
    print(f"load average before: {load:.2f}" + (" (not quiet!)" if load > 0.5 else ""))
    with LlamaModel(arguments.model) as model:
        measure_loop(model, arguments.rounds, arguments.n)
        measure_lookup()


def measure_loop(model: LlamaModel, rounds: int, n: int) -> None:
    """The loop without a source against a bare decode-and-argmax loop over the same calls."""
    prompt = model.tokenize((EXAMPLES / "prose-prompt.txt").read_text())

    def bare(target: LlamaTarget) -> float:
        target.clear()
        token = int(target.decode(prompt, 1)[0].argmax())
        started = time.perf_counter()
        for _ in range(n):
            token = int(target.decode([token], 1)[0].argmax())
        return n / (time.perf_counter() - started)

    def loop(target: LlamaTarget) -> float:
        target.clear()
        generation = generate(target, prompt, n_predict=n, pick=never_ending(target))
        list(generation)
        return generation.n_generated / generation.wall_s

    with LlamaTarget(model, n_ctx=N_CTX) as target:
        print(f"\nthe loop without a source, {n} tokens, {rounds} rounds")
        cells = {
            "bare loop": lambda: bare(target),
            "bare loop again": lambda: bare(target),
            "bmoe loop": lambda: loop(target),
        }
        compare(cells, rounds)


def never_ending(target: LlamaTarget) -> Callable[[Any], int]:
    """Argmax, but the bare loop does not stop at an end of text, so neither may this."""

    def pick(row: Any) -> int:
        token = int(row.argmax())
        return 0 if target.is_eog(token) else token

    return pick


def measure_lookup() -> None:
    """Seconds a draft on a history without a match: the case in which nothing ends the search."""
    print("\none lookup that finds nothing, median of 200, in µs")
    source = open_source("ngram")
    peers = {f"max_ngram_size={size}": LlamaPromptLookupDecoding(size, 3) for size in (2, 5)}
    print(f"{'history':>9}  {'bmoe-ngram':>10}", *(f"{name:>16}" for name in peers), "  cheaper by")
    for n in (1024, 4096, 32768, 131072):
        history = np.random.default_rng(n).permutation(n).astype(np.int32)
        history.flags.writeable = False
        ours = median_us(lambda history=history: source.draft(history, 3))  # type: ignore[misc]
        theirs = [median_us(lambda h=history, p=peer: p(h)) for peer in peers.values()]  # type: ignore[misc]
        print(
            f"{n:>9}  {ours:>10.1f}",
            *(f"{t:>16.1f}" for t in theirs),
            f"  ×{min(theirs) / ours:.0f}",
        )


def median_us(call: Callable[[], Any], n: int = 200) -> float:
    """Median time of a call in microseconds."""
    times = []
    for _ in range(n):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def compare(cells: dict[str, Callable[[], float]], rounds: int) -> None:
    """Run every cell once a round, in turned order every other round; ratios are to the first cell.

    The first round is not recorded.
    """
    rates: dict[str, list[float]] = {name: [] for name in cells}
    for i in range(rounds + 1):
        for name in list(cells)[:: -1 if i % 2 else 1]:
            rate = cells[name]()
            if i:
                rates[name].append(rate)
            if sys.stderr.isatty():
                print(f"\r\033[Kround {i} of {rounds}: {name}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    baseline = rates[next(iter(cells))]
    print(f"{'':28}{'tok/s':>8}{'min':>8}{'max':>8}   ratio to the first, round by round")
    for name, values in rates.items():
        ratios = sorted(value / base for value, base in zip(values, baseline, strict=True))
        print(
            f"{name:28}{statistics.median(values):>8.2f}{min(values):>8.2f}{max(values):>8.2f}"
            f"   {statistics.median(ratios):.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
