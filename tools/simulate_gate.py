"""Try the gate on simulated machines and texts; write a table and plots.

No model and no clock are used, so the figures do not depend on the machine it runs on:
python tools/simulate_gate.py [--seeds N] [--tokens N] [--out docs/measured/gate]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from matplotlib import pyplot as plt

from bmoe_core.gate import CostGate
from bmoe_core.policy import Outcome, Trial
from bmoe_core.steps import Draft
from bmoe_core.testing.simulation import FixedWidth, Machine, Run, flat, mixture, simulate, steep
from bmoe_core.testing.texts import Adversary, Scripted, Text, bursty, constant, switching

WIDTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Fixed widths that the best in hindsight is chosen from."""
JUDGED_FROM = 200
"""Tokens after which no run may be behind plain decoding by more than the bar."""

MACHINES = {
    "flat": Machine(curve=flat, drift=0.0005),
    "steep": Machine(curve=steep, drift=0.0005),
    "mixture": Machine(curve=mixture, drift=0.0005),
}
SOURCES: dict[str, dict[str, Any]] = {
    "free": {},
    "free, replay": {"replay": 1.0},
    "free, merged": {"merged": True},
    "costly, replay": {"draft_fixed": 0.02, "draft_each": 0.1, "replay": 1.0},
}
TEXTS: dict[str, Callable[[int, int], Text]] = {
    "constant 0.1": lambda n, seed: constant(n, seed, 0.1),
    "constant 0.4": lambda n, seed: constant(n, seed, 0.4),
    "constant 0.7": lambda n, seed: constant(n, seed, 0.7),
    "constant 0.9": lambda n, seed: constant(n, seed, 0.9),
    "constant 0.98": lambda n, seed: constant(n, seed, 0.98),
    "bursty": bursty,
    "regime switch": switching,
    "adversary": lambda n, seed: Adversary(),
    "adversary, bait 1": lambda n, seed: Adversary(1),
    "adversary, bait 3": lambda n, seed: Adversary(3),
}


@frozen
class Cell:
    """A machine, a source and a text: medians over the seeds, and the worst of them.

    Attributes:
        names: of the machine, the source and the text.
        gate: speed-up of the gate over plain decoding.
        fixed: of the fixed width that is best in hindsight; None where a text adapts to the policy.
        width: that width.
        regimes: of the fixed width that is best in each kind of text.
        worst: lowest speed-up of any seed at any moment after JUDGED_FROM tokens.
        trace: of the first seed.
    """

    names: tuple[str, str, str]
    gate: float
    fixed: float | None
    width: float | None
    regimes: float | None
    worst: float
    trace: Sequence[tuple[int, float, int]]


def main() -> None:
    """Run every cell and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/gate"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    cells = [
        measure(names, range(arguments.seeds), arguments.tokens)
        for names in [(m, s, t) for m in MACHINES for s in SOURCES for t in TEXTS]
    ]
    write_table(cells, arguments.out / "simulation.csv")
    plot_against_hindsight(cells, arguments.out / "hindsight.png")
    plot_traces(cells, arguments.out / "traces.png")
    plot_noise(arguments.seeds, arguments.out / "worst.png")
    measure_own_cost()


def measure(names: tuple[str, str, str], seeds: Sequence[int], n_tokens: int) -> Cell:
    """One cell."""
    machine = evolve(MACHINES[names[0]], **SOURCES[names[1]])
    runs, fixed, widths, regimes = [], [], [], []
    for seed in seeds:
        text = TEXTS[names[2]](n_tokens, seed)
        runs.append(simulate(CostGate(), text, machine, n_tokens, seed=seed))
        if isinstance(text, Scripted):
            by_width = {
                width: simulate(FixedWidth(width), text, machine, n_tokens, seed=seed)
                for width in WIDTHS
            }
            best = max(by_width, key=lambda width: by_width[width].speed_up)
            fixed.append(by_width[best].speed_up)
            widths.append(best)
            regimes.append(best_by_regime(list(by_width.values())))
    return Cell(
        names=names,
        gate=statistics.median(run.speed_up for run in runs),
        fixed=statistics.median(fixed) if fixed else None,
        width=statistics.median(widths) if widths else None,
        regimes=statistics.median(regimes) if regimes else None,
        worst=min(lowest(run) for run in runs),
        trace=runs[0].trace,
    )


def lowest(run: Run) -> float:
    """The lowest speed-up at any moment after JUDGED_FROM tokens."""
    return min(speed_up for n, speed_up, _ in run.trace if n >= JUDGED_FROM)


def best_by_regime(runs: Sequence[Run]) -> float:
    """The speed-up of who knows each kind of text, and its best fixed width."""
    plain = runs[0]
    cost = 0.0
    for regime, (n_tokens, _) in plain.by_regime.items():
        per_token = min(
            run.by_regime[regime][1] / run.by_regime[regime][0]
            for run in runs
            if regime in run.by_regime
        )
        cost += n_tokens * per_token
    return plain.plain_cost / cost


def write_table(cells: Sequence[Cell], path: Path) -> None:
    """As CSV, and on the terminal."""
    header = "machine,source,text,gate,best_fixed,best_width,by_regime,gate/best_fixed,worst"
    lines = [header]
    for cell in cells:
        share = None if cell.fixed is None else cell.gate / cell.fixed
        figures = (cell.gate, cell.fixed, cell.width, cell.regimes, share, cell.worst)
        shown = ["" if figure is None else f"{figure:.3f}" for figure in figures]
        lines.append(",".join([*(name.replace(",", " +") for name in cell.names), *shown]))
    path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"worst of all: {min(cell.worst for cell in cells):.4f}")


def plot_against_hindsight(cells: Sequence[Cell], path: Path) -> None:
    """The gate beside the best fixed width and the best for each kind of text."""
    figure, axes = plt.subplots(len(MACHINES), len(SOURCES), figsize=(13, 10), sharex=True)
    for row, machine in enumerate(MACHINES):
        for column, source in enumerate(SOURCES):
            axis = axes[row][column]
            shown = [c for c in cells if c.names[:2] == (machine, source) and c.fixed is not None]
            names = [cell.names[2] for cell in shown]
            places = range(len(shown))
            axis.plot(places, [c.regimes for c in shown], "_", ms=22, c="tab:green")
            axis.plot(places, [c.fixed for c in shown], "_", ms=22, c="tab:orange")
            axis.plot(places, [c.gate for c in shown], "o", c="tab:blue")
            axis.axhline(1.0, color="grey", lw=0.8)
            axis.set_yscale("log")
            axis.set_title(f"{machine}, {source}", fontsize=10)
            axis.set_xticks(list(places), names, rotation=40, ha="right", fontsize=8)
            set_ratio_ticks(axis)
            if column == 0:
                axis.set_ylabel("speed-up over plain")
    figure.legend(
        ["best width for each kind of text", "best fixed width in hindsight", "gate"],
        loc="upper center",
        ncol=3,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def set_ratio_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis of ratios."""
    low, high = axis.get_ylim()
    candidates = (1, 2, 3, 5, 10, 20) if high > 6 else (1, 1.2, 1.5, 2, 3, 5)
    ticks = [tick for tick in candidates if low <= tick <= high]
    axis.set_yticks(ticks, [f"×{tick:g}" for tick in ticks])
    axis.minorticks_off()


def plot_traces(cells: Sequence[Cell], path: Path) -> None:
    """How speed-up and width went in one run of each kind, on the steep machine."""
    shown = [c for c in cells if c.names[:2] == ("steep", "free") and c.names[2] in TRACED]
    figure, axes = plt.subplots(len(shown), 1, figsize=(11, 2.3 * len(shown)), sharex=True)
    for axis, cell in zip(axes, shown, strict=True):
        tokens = [n for n, _, _ in cell.trace]
        axis.plot(tokens, [speed_up for _, speed_up, _ in cell.trace], c="tab:blue")
        axis.axhline(1.0, color="grey", lw=0.8)
        axis.axhline(0.98, color="tab:red", lw=0.8, ls=":")
        axis.set_ylabel("speed-up so far")
        axis.set_title(f"{cell.names[2]}: speed-up so far, and tokens verified (bars)", fontsize=9)
        widths = axis.twinx()
        widths.bar(tokens, [width for _, _, width in cell.trace], width=3, color="0.8")
        widths.set_ylabel("draft tokens")
        axis.set_zorder(widths.get_zorder() + 1)
        axis.patch.set_visible(False)
    axes[-1].set_xlabel("tokens")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


TRACED = ("constant 0.9", "bursty", "regime switch", "adversary")


def plot_noise(n_seeds: int, path: Path) -> None:
    """The lowest speed-up after JUDGED_FROM tokens of every run, for several levels of noise."""
    levels = ((0.04, 0.003), (0.1, 0.01), (0.15, 0.01), (0.2, 0.02))
    figure, axis = plt.subplots(figsize=(9, 4.5))
    for place, (noise, outliers) in enumerate(levels):
        found = []
        for machine in MACHINES.values():
            for source in SOURCES.values():
                noisy = evolve(machine, noise=noise, outliers=outliers, **source)
                for make in TEXTS.values():
                    for seed in range(n_seeds):
                        run = simulate(CostGate(), make(300, seed), noisy, 300, seed=seed)
                        found.append(lowest(run))
        low = [value for value in found if value < 1.0]
        below = sum(value < 0.98 for value in found)
        print(f"noise {noise}, outliers {outliers}: worst {min(found):.4f}, below 0.98: {below}")
        jitter = [place + 0.5 * (i / max(len(low), 1) - 0.5) for i in range(len(low))]
        axis.plot(jitter, low, ".", ms=3, c="tab:blue")
        label = f"{below} of {len(found)} below 0.98\nworst {min(found):.3f}"
        axis.annotate(label, (place, 1.001), ha="center", fontsize=8)
    axis.axhline(0.98, color="tab:red", lw=0.8, ls=":")
    axis.set_xticks(range(len(levels)), [f"noise {n:.0%},\n{o:.1%} of times ×5" for n, o in levels])
    axis.set_ylabel(f"lowest speed-up after {JUDGED_FROM} tokens\n(runs that lose)")
    axis.set_ylim(top=1.006)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


class Timed:
    """A gate, and the processor time spent in it."""

    def __init__(self) -> None:
        self.gate, self.spent_s, self.n_steps = CostGate(), 0.0, 0

    def begin(self) -> None:
        """See Policy."""
        self.gate.begin()

    def calibration(self, most: int) -> Sequence[int]:
        """See Policy."""
        return self.gate.calibration(most)

    def calibrate(self, trials: Sequence[Trial]) -> None:
        """See Policy."""
        self.gate.calibrate(trials)

    def ask(self, room: int) -> int:
        """See Policy."""
        started = time.thread_time()
        n_asked = self.gate.ask(room)
        self.spent_s += time.thread_time() - started
        return n_asked

    def choose(self, draft: Draft, draft_s: float) -> int:
        """See Policy."""
        started = time.thread_time()
        n_verified = self.gate.choose(draft, draft_s)
        self.spent_s += time.thread_time() - started
        return n_verified

    def learn(self, outcome: Outcome) -> None:
        """See Policy."""
        started = time.thread_time()
        self.gate.learn(outcome)
        self.spent_s += time.thread_time() - started
        self.n_steps += 1


def measure_own_cost() -> None:
    """Microseconds of the gate itself a step; these figures alone need a quiet machine."""
    n = 4000
    declining = Scripted([False] * (n + 65), [None] * (n + 65), ["prose"] * (n + 65))
    texts: dict[str, tuple[Text, Machine]] = {
        "source declines": (declining, MACHINES["steep"]),
        "every draft declined": (Adversary(), MACHINES["steep"]),
        "bursty": (bursty(n, 0), MACHINES["steep"]),
        "always drafts": (constant(n, 0, 0.9), MACHINES["steep"]),
        "drafts up to 64": (constant(n, 0, 0.98), MACHINES["flat"]),
    }
    for name, (text, machine) in texts.items():
        costs, tokens = [], 0.0
        for _ in range(5):
            timed = Timed()
            run = simulate(timed, text, machine, n)
            costs.append(timed.spent_s / timed.n_steps * 1e6)
            tokens = run.n_tokens / timed.n_steps
        print(f"own cost, {name}: {min(costs):.1f} µs a step of {tokens:.1f} tokens")


if __name__ == "__main__":
    main()
