"""What the demo model's head gains: acceptance by width, and speed on a ballasted copy.

The bare model is nearly all overhead, so speed is measured on a copy with no-op layers. Prompts are
code and prose that the model was not trained on. Run it on a quiet machine:
python tools/measure_head.py
"""

from __future__ import annotations

import argparse
import re
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil

from bmoe_core import LlamaModel, LlamaTarget, Summary, Tally, generate, open_source
from bmoe_core.models import demo_model
from bmoe_core.models.ballast import add_ballast

ROOT = Path(__file__).parent.parent
N_PROMPT = 160
N_CTX = 512
MODES = ("none", "none again", "mtp", "mtp p_min 0.5", "ngram")


def code_prompts(n: int) -> list[str]:
    """The beginnings of the longest modules of attrs and pluggy."""
    folder = Path(sysconfig.get_path("purelib"))
    files = [path for name in ("attr", "pluggy") for path in (folder / name).glob("*.py")]
    files.sort(key=lambda path: -path.stat().st_size)
    return [path.read_text() for path in files[:n]]


def prose_prompts(n: int) -> list[str]:
    """Paragraphs of bmoe's own explanations."""
    text = "\n\n".join(
        path.read_text() for path in sorted((ROOT / "docs" / "explanation").glob("*.md"))
    )
    paragraphs = [part for part in text.split("\n\n") if re.match(r"[A-Z]", part)]
    return sorted(paragraphs, key=len, reverse=True)[:n]


def main() -> None:
    """Print the acceptance table, then the speed table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=44, help="no-op layers of the ballasted copy")
    parser.add_argument("-n", type=int, default=256, help="tokens a run")
    arguments = parser.parse_args()
    load = psutil.getloadavg()[0]
    print(f"load average before: {load:.2f}" + (" (not quiet!)" if load > 0.5 else ""))
    prompts = {"code": code_prompts(8), "prose": prose_prompts(8)}
    acceptance(prompts, arguments.n)
    with tempfile.TemporaryDirectory() as folder:
        heavy = Path(folder) / "heavy.gguf"
        add_ballast(demo_model(), heavy, arguments.layers)
        size = heavy.stat().st_size / 1e6
        print(f"\nballasted copy: {arguments.layers} no-op layers, {size:.0f} MB")
        speed(heavy, {kind: texts[:3] for kind, texts in prompts.items()}, arguments.rounds)


def acceptance(prompts: dict[str, list[str]], n: int) -> None:
    """Acceptance and tokens a verify decode at draft 1, 2, 3 over all prompts of a kind."""
    print(f"\n{'prompts':8}{'draft':>6}{'acceptance':>12}{'tokens per verify decode':>26}")
    source = open_source("mtp")
    with LlamaModel(demo_model(), prepare=source.prepare_model) as model:
        for kind, texts in prompts.items():
            for width in (1, 2, 3):
                total = Tally()
                with LlamaTarget(model, n_ctx=N_CTX, max_draft=width, n_threads=1) as target:
                    source.open(target)
                    for text in texts:
                        target.clear()
                        tokens = model.tokenize(text)[:N_PROMPT]
                        for step in generate(
                            target, tokens, source=source, width=width, n_predict=n
                        ):
                            total.add(step)
                    source.close()
                summary = total.summary
                print(
                    f"{kind:8}{width:>6}{summary.acceptance:>12.1%}"
                    f"{summary.tokens_per_verify_decode:>26.2f}"
                )


def speed(path: Path, prompts: dict[str, list[str]], rounds: int) -> None:
    """Effective rates at draft 3, interleaved, as ratios to plain decoding in the same round."""
    for kind, texts in prompts.items():
        rates: dict[str, list[float]] = {mode: [] for mode in MODES}
        summaries: dict[str, Summary] = {}
        for i in range(rounds + 1):
            for mode in MODES[:: -1 if i % 2 else 1]:
                summaries[mode] = run(path, texts, mode)
                if i:
                    rates[mode].append(summaries[mode].effective_tok_s or 0.0)
        print(
            f"\n{kind}: {'tok/s':>14}   ratio to none, round by round       acceptance   coverage"
        )
        for mode, values in rates.items():
            ratios = sorted(v / base for v, base in zip(values, rates["none"], strict=True))
            accepted, covered = summaries[mode].acceptance, summaries[mode].coverage or 0.0
            print(
                f"{mode:14}{statistics.median(values):>8.1f}   {statistics.median(ratios):.3f} "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
                f"{'' if accepted is None else f'{accepted:>20.1%}{covered:>11.1%}'}"
            )


def run(path: Path, texts: list[str], mode: str) -> Summary:
    """One pass over the prompts, 128 tokens each, on a context made for the mode."""
    name = mode.split()[0]
    options = {"p_min": 0.5} if "p_min" in mode else {}
    source = None if name == "none" else open_source(name, options)
    tally = Tally()
    with (
        LlamaModel(path, prepare=source.prepare_model if source else None) as model,
        LlamaTarget(model, n_ctx=N_CTX, max_draft=3 if source else 0) as target,
    ):
        if source:
            source.open(target)
        for text in texts:
            target.clear()
            tokens = model.tokenize(text)[:N_PROMPT]
            for step in generate(target, tokens, source=source, width=3, n_predict=128):
                tally.add(step)
        if source:
            source.close()
    return tally.summary


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - started:.0f} s")
