"""What streaming the experts of a model larger than its memory gains, and what speculation costs.

Each cell is a process of its own in a memory cgroup of the chosen size, begun with nothing of the
model in the page cache. Linux, root. The rates depend on the machine: run it on a quiet one.

python tools/measure_streaming.py MODEL --bound-mib N [--cache-mib N ...] [--sources none ngram mtp]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.footprint import Footprint
from bmoe_core.gate import CostGate
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.stream import ExpertStream
from bmoe_core.routing.tally import RoutingTally
from bmoe_core.routing.tap import RouterTap

MIB = 2**20
WIDTH = 3
COLUMNS = {
    "tok_s": "tok/s",
    "hit": "hit",
    "read_mib": "MiB read/token",
    "wait_ms": "ms waited/token",
    "majflt": "majflt/token",
    "acceptance": "acceptance",
    "tokens_per_decode": "tokens per verify decode",
    "coverage": "coverage",
    "load_s": "load s",
    "prefill_s": "prompt s",
    "anon_mib": "anon MiB",
    "file_mib": "file MiB",
    "peak_mib": "peak of the cgroup, MiB",
}


def main() -> None:
    """Run the cells and print a table; with ``--cell`` run one, in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--bound-mib", type=int, help="memory of a cell's process, page cache too")
    parser.add_argument("--cache-mib", type=int, nargs="+", default=[])
    parser.add_argument("--sources", nargs="+", default=["none"], help="as mtp, or mtp+gate")
    parser.add_argument("--prompt", type=Path, help="a text; default: random tokens, see --forced")
    parser.add_argument("--forced", action="store_true", help="go on with random tokens as well")
    parser.add_argument("-n", type=int, default=64, help="tokens to generate")
    parser.add_argument("-t", "--threads", type=int, default=psutil.cpu_count(logical=False))
    parser.add_argument("--io-threads", type=int, default=4)
    parser.add_argument("--dense-weights", default="warm")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-mmap", action="store_true", help="no cells without streaming")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell is not None:
        print(json.dumps(run_cell(arguments, json.loads(arguments.cell))))
        return
    print(f"load average before: {psutil.getloadavg()[0]:.2f}")
    print("| round | cell | " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for i in range(arguments.rounds):
        cells: list[dict[str, Any]] = []
        for source in arguments.sources:
            if not arguments.no_mmap:
                cells.append({"source": source, "cache_mib": None})
            cells += [{"source": source, "cache_mib": mib} for mib in arguments.cache_mib]
        for cell in cells[:: -1 if i % 2 else 1]:
            figures = run_bounded(arguments.model, arguments.bound_mib, cell)
            how = "mmap" if cell["cache_mib"] is None else f"streamed, {cell['cache_mib']} MiB"
            shown = " | ".join(show(figures.get(name)) for name in COLUMNS)
            print(f"| {i + 1} | {cell['source']}, {how} | {shown} |", flush=True)


def show(value: float | None) -> str:
    """A figure, or a dash where there is none."""
    if value is None:
        return "—"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def run_bounded(model: Path, bound_mib: int | None, cell: dict[str, Any]) -> dict[str, Any]:
    """One cell in a process of its own; its figures, or none where it was killed."""
    forget_pages(model)
    command = [sys.executable, *sys.argv, "--cell", json.dumps(cell)]
    with memory_group(bound_mib) as group:

        def join() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(
            command, preexec_fn=join, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            print(f"the cell {cell} ended with status {done.returncode}", file=sys.stderr)
            return {}
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if group is not None:
            peak = next(
                name
                for name in ("memory.peak", "memory.max_usage_in_bytes")
                if (group / name).exists()
            )
            figures["peak_mib"] = int((group / peak).read_text()) / MIB
    return figures


@contextmanager
def memory_group(bound_mib: int | None) -> Iterator[Path | None]:
    """A memory cgroup of either version, removed in the end; None where there is no bound."""
    if bound_mib is None:
        yield None
        return
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory").is_dir()
    group = (root / "memory" if v1 else root) / f"bmoe-measure-{os.getpid()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if v1 else "memory.max"
        (group / limit).write_text(str(bound_mib * MIB))
        yield group
    finally:
        # A group that still holds a dying process is busy.
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def forget_pages(model: Path) -> None:
    """Take a file out of the page cache."""
    os.sync()
    descriptor = os.open(model, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def run_cell(arguments: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """One generation; its figures."""
    started = time.perf_counter()
    name, _, gated = cell["source"].partition("+")
    source = None if name == "none" else open_source(name)
    gate = CostGate() if gated else None
    stream = None
    if cell["cache_mib"] is not None:
        options = StreamOptions(cell["cache_mib"], arguments.io_threads, arguments.dense_weights)
        stream = ExpertStream.open(arguments.model, options)

    def prepare(params: Any) -> None:
        # The same kernels with and without streaming.
        params.use_extra_bufts = False
        for part in (source, stream):
            if part is not None:
                part.prepare_model(params)

    with LlamaModel(arguments.model, prepare=prepare) as model:
        tap = None
        if stream is not None:
            stream.attach(model)
            tap = RouterTap(stream)
        target = LlamaTarget(
            model,
            n_ctx=1024,
            max_draft=WIDTH if source else 0,
            rollback="checkpoint" if gate else "snapshots",
            n_threads=arguments.threads,
            prepare=source.prepare_context if source else None,
            tap=tap,
        )
        if source is not None:
            source.open(target)
        load_s = time.perf_counter() - started
        figures = measure(arguments, model, target, source, tap, gate)
        if source is not None:
            source.close()
    if stream is not None:
        stream.close()
    return {**figures, "load_s": load_s}


def measure(
    arguments: argparse.Namespace,
    model: LlamaModel,
    target: LlamaTarget,
    source: Any,
    tap: RouterTap | None,
    gate: CostGate | None,
) -> dict[str, Any]:
    """The generation of a loaded model."""
    chooser = random.Random(1)
    if arguments.prompt is None:
        prompt = [chooser.randrange(model.n_vocab - 1) for _ in range(32)]
    else:
        prompt = model.tokenize(arguments.prompt.read_text())

    def pick(row: Any) -> int:
        if arguments.forced:
            return chooser.randrange(model.n_vocab - 1)
        token = int(np.argmax(row))
        return 0 if target.is_eog(token) else token

    tally = Tally()
    routing = RoutingTally(tap.layers if tap else {}, is_streamed=True)
    faults_before = 0

    def on_prefill(n_done: int, n_prompt: int) -> None:
        nonlocal faults_before
        if n_done == n_prompt:
            faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            if tap is not None:
                tap.take()

    generation = generate(
        target,
        prompt,
        source=source,
        n_predict=arguments.n,
        width=WIDTH,
        gate=gate,
        pick=pick,
        on_prefill=on_prefill,
    )
    for step in generation:
        tally.add(step)
        if tap is not None:
            routing.add(tap.take())
    n, reads = tally.summary.n_generated, routing.summary.reads
    footprint = Footprint.now()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults_before
    return {
        "tok_s": n / generation.wall_s,
        "hit": None if tap is None else reads.hit_rate,
        "read_mib": None if tap is None else reads.n_bytes / MIB / n,
        "wait_ms": None if tap is None else 1e3 * reads.wait_s / n,
        "majflt": faults / n,
        "acceptance": tally.summary.acceptance,
        "tokens_per_decode": tally.summary.tokens_per_verify_decode,
        "coverage": tally.summary.coverage if source else None,
        "prefill_s": generation.prefill_s,
        "anon_mib": footprint.rss_anon_mib,
        "file_mib": footprint.rss_file_mib,
    }


if __name__ == "__main__":
    main()
