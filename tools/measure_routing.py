"""What speculation demands of the demo model's experts, and what reading the routing costs.

The counts do not depend on the machine; the rates do: run it on a quiet one.
python tools/measure_routing.py [--dense MODEL]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import psutil

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.models import demo_model
from bmoe_core.routing.cache import LruCache
from bmoe_core.routing.records import DecodeRouting
from bmoe_core.routing.tally import RoutingTally
from bmoe_core.routing.tap import RouterTap

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
PROMPTS = {"copy": "demo-prompt.txt", "prose": "prose-prompt.txt"}
N_CTX = 1024
WIDTH = 3
SHARES = (0.25, 0.5, 0.75)


def main() -> None:
    """Print the table of demands, then the cost of the tap."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dense", type=Path, help="a dense model for the cost of the tap")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-n", type=int, default=256, help="tokens a run")
    arguments = parser.parse_args()
    load = psutil.getloadavg()[0]
    print(f"load average before: {load:.2f}" + (" (not quiet!)" if load > 0.5 else ""))
    demands(arguments.n)
    for path in (demo_model(), arguments.dense):
        if path is not None:
            tap_cost(path, arguments.rounds)


def demands(n_predict: int) -> None:
    """A row for each prompt and source, in the form of the documentation's table."""
    shares = " | ".join(f"hit at {share:.0%}" for share in SHARES)
    print(
        f"\n| prompt | source | MiB/token | distinct | widening | {shares} | acceptance | "
        "tokens per verify decode | coverage |"
    )
    print("|---" * (8 + len(SHARES)) + "|")
    for kind, file in PROMPTS.items():
        for name in ("none", "ngram", "mtp"):
            print_demands(kind, name, (EXAMPLES / file).read_text(), n_predict)


def print_demands(kind: str, name: str, text: str, n_predict: int) -> None:
    """One run, and three caches over its routing."""
    source = None if name == "none" else open_source(name)
    tap = RouterTap()
    arguments: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "tap": tap}
    with LlamaModel(demo_model(), prepare=source.prepare_model if source else None) as model:
        target = LlamaTarget(model, max_draft=WIDTH if source else 0, **arguments)
        if source is not None:
            source.open(target)
        tally, routing = Tally(), RoutingTally(tap.layers)
        prefill: list[DecodeRouting] = []
        decodes: list[DecodeRouting] = []
        for step in generate(
            target,
            model.tokenize(text),
            source=source,
            n_predict=n_predict,
            width=WIDTH,
            on_prefill=lambda *_: prefill.extend(tap.take()),
        ):
            tally.add(step)
            routed = tap.take()
            decodes += routed
            routing.add(routed)
        if source is not None:
            source.close()
    # Of the trunk's and the head's experts alike, whether or not a source uses the head.
    n_layers = model.n_layer + 1
    a_layer = next(iter(tap.layers.values()))
    total = n_layers * a_layer.n_expert * a_layer.expert_bytes
    caches = [LruCache(int(share * total)) for share in SHARES]
    for cache in caches:
        cache.feed(prefill, tap.layers)
        cache.forget_counts()
        cache.feed(decodes, tap.layers)
    summary, counted = tally.summary, routing.summary
    cells = [
        *(kind, name, f"{counted.demanded_mib_per_token(summary.n_generated):.2f}"),
        *(f"{counted.distinct_per_layer:.1f}", show(counted.widening, "×{:.2f}")),
        *(show(cache.hit_rate, "{:.1%}") for cache in caches),
        show(summary.acceptance, "{:.1%}"),
        f"{summary.tokens_per_verify_decode:.2f}",
        show(summary.coverage if source else None, "{:.1%}"),
    ]
    print("| " + " | ".join(cells) + " |")


def show(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "—" if value is None else form.format(value)


def tap_cost(path: Path, rounds: int) -> None:
    """Plain decoding with the tap against without it, interleaved."""
    prompt_text = (EXAMPLES / "prose-prompt.txt").read_text()
    with LlamaModel(path) as model:
        prompt = model.tokenize(prompt_text)
        targets = {
            "without": LlamaTarget(model, n_ctx=N_CTX),
            "without again": LlamaTarget(model, n_ctx=N_CTX),
            "with the tap": LlamaTarget(model, n_ctx=N_CTX, tap=RouterTap()),
        }
        rates: dict[str, list[float]] = {name: [] for name in targets}
        for i in range(rounds + 1):
            for name in list(targets)[:: -1 if i % 2 else 1]:
                target = targets[name]
                target.clear()
                tally = Tally()
                for step in generate(target, prompt, n_predict=96, pick=never_ending(target)):
                    tally.add(step)
                if i:
                    rates[name].append(tally.summary.reported_tok_s or 0.0)
        print(f"\n{path.name}, plain decoding, {rounds} rounds of 96 tokens, as ratios a round")
        for name, values in rates.items():
            ratios = sorted(v / base for v, base in zip(values, rates["without"], strict=True))
            print(
                f"{name:14}{statistics.median(values):>9.1f} tok/s   "
                f"{statistics.median(ratios):.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            )


def never_ending(target: LlamaTarget) -> Any:
    """Argmax, but an end of text does not end the run: all rounds are of one length."""

    def pick(row: Any) -> int:
        token = int(row.argmax())
        return 0 if target.is_eog(token) else token

    return pick


if __name__ == "__main__":
    main()
