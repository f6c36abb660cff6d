"""The command ``bmoe bench``."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bmoe_core.bench.conditions import OthersWatch, temperature
from bmoe_core.bench.figures import Key
from bmoe_core.bench.markdown import markdown
from bmoe_core.bench.peers import Peers
from bmoe_core.bench.plan import BASELINE, Plan, parse_bench
from bmoe_core.bench.record import load_runs, to_csv, to_json
from bmoe_core.bench.report import Agreement, GapMeasure, Report, agreement
from bmoe_core.bench.rig import Rig
from bmoe_core.bench.runs import Run
from bmoe_core.bench.session import Session
from bmoe_core.bench.step_costs import WidthCost, measure_widths
from bmoe_core.bench.table import print_report
from bmoe_core.errors import UsageError
from bmoe_core.files import OutputFile
from bmoe_core.interrupts import exit_status_of
from bmoe_core.loop import MAX_WIDTH

WIDTH_ROUNDS, QUICK_WIDTH_ROUNDS = 21, 9


def bench(argv: Sequence[str]) -> int:
    """Run a bench; returns the exit status.

    Raises:
        BmoeError: what can be refused is, before the model is loaded.
    """
    plan = parse_bench(argv)
    if plan.cool_c is not None and temperature() is None:
        raise UsageError("--cool: this machine reports no temperature; leave it out")
    earlier = [] if plan.resume is None else load_runs(plan.resume, plan)
    files = {name: OutputFile(str(path)) for name, path in plan.outputs.items() if name != "plot"}
    try:
        report, interrupt = _measure(plan, earlier)
        # A report is for reading: on a pipe it is as wide as on the narrowest usual terminal.
        console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)
        print_report(report, console)
        if "json" in files:
            files["json"].write(to_json(report))
        if "csv" in files:
            files["csv"].write(to_csv(report))
        if "md" in files:
            files["md"].write(markdown(report))
        if "plot" in plan.outputs:
            from bmoe_core.bench.plots import draw

            draw(report, plan.outputs["plot"])
    finally:
        for file in files.values():
            file.close()
    return 0 if interrupt is None else exit_status_of(interrupt)


def _measure(plan: Plan, earlier: Sequence[Run]) -> tuple[Report, KeyboardInterrupt | None]:
    """What was found, and what ended it early."""
    started = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # Drawn between runs only: a thread that draws would be part of what is timed.
        auto_refresh=False,
        disable=not sys.stderr.isatty(),
    )
    with Rig(plan) as rig, Peers(plan, rig) as peers, progress:
        task = progress.add_task("", total=None)
        session = Session(
            plan=plan,
            rig=rig,
            peers=peers,
            watch=OthersWatch(peers.pids),
            on_progress=lambda done, total, what: progress.update(
                task, completed=done, total=total, description=what, refresh=True
            ),
        )
        interrupt: KeyboardInterrupt | None = None
        step_costs: list[WidthCost] = []
        try:
            session.execute(earlier)
            progress.update(task, description="decodes of several positions", refresh=True)
            step_costs = _step_costs(plan, rig, session)
        except KeyboardInterrupt as caught:
            interrupt = caught
        report = Report(
            plan=plan,
            model=_model_facts(rig),
            n_prompt={prompt.name: len(rig.tokens(prompt)) for prompt in plan.prompts},
            n_ctx=rig.n_ctx,
            n_threads=rig.n_threads,
            cells=session.cells,
            left_out={**rig.unavailable, **peers.unavailable},
            runs=session.runs,
            surveys=session.surveys,
            # Near ties are decoded for, which an interrupt is not to wait for.
            agreements=_agreements(session, rig if interrupt is None else None),
            step_costs=step_costs,
            interrupted=interrupt is not None,
            started=started,
        )
        return report, interrupt


def _step_costs(plan: Plan, rig: Rig, session: Session) -> list[WidthCost]:
    answers = [(session.surveys[BASELINE, prompt.name].tokens, prompt) for prompt in plan.prompts]
    answer, prompt = max(answers, key=lambda item: len(item[0]))
    most = min(MAX_WIDTH, len(answer) - 2)
    if most < 1 or not rig.can_draft:
        return []
    with rig.plain_target(most) as target:
        rounds = QUICK_WIDTH_ROUNDS if plan.quick else WIDTH_ROUNDS
        return measure_widths(target, rig.tokens(prompt), answer, most=most, rounds=rounds)


def _agreements(session: Session, measure: GapMeasure | None) -> dict[Key, Agreement]:
    prompts = {prompt.name: prompt for prompt in session.plan.prompts}
    return {
        (name, cell.name): agreement(
            prompts[name], survey.tokens, session.surveys[BASELINE, name].tokens, measure
        )
        for (cell, name), survey in session.surveys.items()
        if not cell.is_baseline
    }


def _model_facts(rig: Rig) -> dict[str, Any]:
    model = rig.model
    return {
        "file": rig.path.name,
        "description": model.description,
        "architecture": model.architecture,
        "n_layer": model.n_layer,
        "n_expert": model.n_expert,
        "n_expert_used": model.n_expert_used,
        "size_mib": round(rig.path.stat().st_size / 2**20, 1),
    }
