"""What a bench is to run: its command line, and the cells that come of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from bmoe_core.arguments import Parser
from bmoe_core.bench.prompts import Prompt, find_prompt
from bmoe_core.errors import UsageError
from bmoe_core.gate import MAX_WIDTH as AUTO_WIDTH
from bmoe_core.limits import MAX_THREADS
from bmoe_core.loop import DEFAULT_WIDTH, MAX_WIDTH
from bmoe_core.options import options_of
from bmoe_core.sources import NO_SOURCE, find_source, installed_sources

ORACLE = "oracle"
SYNTHETIC = "synthetic"
LLAMA_CPP_PYTHON = "llama-cpp-python"
LLAMA_SERVER = "llama-server"
PEERS = (LLAMA_CPP_PYTHON, LLAMA_SERVER)

DRAFT, GATE = "draft", "gate"
"""The options that any source has in a sweep: the width, and the gate."""

LOOKUP_DEFAULT = 10
"""Tokens a draft of llama-cpp-python's lookup where it is not told another number."""

GATE_OFF, GATE_COST = "off", "cost"
DEFAULT_SOURCES = ("ngram", "mtp")
DEFAULT_COOL_S = 300.0
QUICK = {"n_predict": 96, "rounds": 2}


@frozen
class Cell:
    """What is run on each prompt: a source with its width and options.

    Attributes:
        source: a draft source's name, ``none``, ``oracle``, ``synthetic``, or a peer's.
        draft: the most tokens a draft; 0 for plain decoding.
        options: the source's options, as (name, value).
        gated: whether the gate decides about its drafts, up to ``draft`` tokens.
        keeps_gate: whether one gate serves all of its timed runs.
        hindsight: whether its drafts are cut to what the target is known to accept.
        again: whether this is the repeated baseline.
        swept: whether it belongs to a sweep's table.
    """

    source: str
    draft: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    gated: bool = False
    keeps_gate: bool = False
    hindsight: bool = False
    again: bool = False
    swept: bool = field(default=False, eq=False)

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.source == SYNTHETIC or self.is_peer:
            return " ".join([self.source, *(f"{value}" for _, value in self.options)])
        words = [self.source, *(f"{name}={value}" for name, value in self.options)]
        words += ["gate"] * self.gated + ["kept"] * self.keeps_gate
        words += ["hindsight"] * self.hindsight + ["again"] * self.again
        usual = AUTO_WIDTH if self.gated or self.hindsight else DEFAULT_WIDTH
        if self.draft not in (0, usual):
            words.append(f"draft={self.draft}")
        return " ".join(words)

    @property
    def is_baseline(self) -> bool:
        """Whether it is plain decoding by bmoe itself."""
        return self.source == NO_SOURCE

    @property
    def is_peer(self) -> bool:
        """Whether another program runs it."""
        return self.source in PEERS

    @property
    def knows_the_answer(self) -> bool:
        """Whether it has to be told what the target is going to say."""
        return self.hindsight or self.source in (ORACLE, SYNTHETIC)

    @property
    def is_plugin(self) -> bool:
        """Whether an installed draft source drafts in it, as it would for a user."""
        return not self.hindsight and self.source not in (NO_SOURCE, ORACLE, SYNTHETIC, *PEERS)


BASELINE = Cell(NO_SOURCE)
BASELINE_AGAIN = Cell(NO_SOURCE, again=True)


@frozen(kw_only=True)
class Plan:
    """A bench as it was asked for.

    Attributes:
        model: the GGUF file; None: the demo model.
        prompts: the texts.
        cells: what is run on each of them, the baseline first and its repetition last.
        n_predict: the most tokens a run.
        rounds: how often each cell is run on each prompt.
        draft: the width of the cells that do not set their own.
        n_threads: None: the default.
        llama_server: the program of that peer, or None.
        cool_c: start no run above this temperature in °C; None: do not wait.
        cool_s: how long to wait for it at most.
        outputs: the files and the folder to write, by ``json``, ``csv``, ``md`` and ``plot``.
        resume: a JSON record whose finished rounds are kept, or None.
        quick: whether everything is made short.
    """

    model: Path | None
    prompts: tuple[Prompt, ...]
    cells: tuple[Cell, ...]
    n_predict: int
    rounds: int
    draft: int
    n_threads: int | None = None
    llama_server: Path | None = None
    cool_c: float | None = None
    cool_s: float = DEFAULT_COOL_S
    outputs: dict[str, Path] = field(factory=dict)
    resume: Path | None = None
    quick: bool = False


def parse_bench(argv: Sequence[str]) -> Plan:
    """The plan that a command line asks for; prints and exits for ``--help``.

    Raises:
        UsageError: it cannot be understood, or asks for what does not go together.
        SourceError: a source asked for cannot be used.
    """
    options = _parser().parse_args(argv)
    if options.quick:
        for name, value in QUICK.items():
            if getattr(options, name) is None:
                setattr(options, name, value)
    if options.llama_server is not None and not options.llama_server.is_file():
        raise UsageError(f"there is no program {options.llama_server}: check --llama-server")
    cool_c, cool_s = options.cool
    prompts = tuple(find_prompt(name) for name in options.prompts)
    if len({prompt.name for prompt in prompts}) < len(prompts):
        raise UsageError("two prompts have one name: rename one of the files")
    outputs = {
        name: value
        for name in ("json", "csv", "md", "plot")
        if (value := getattr(options, name)) is not None
    }
    return Plan(
        model=options.model,
        prompts=prompts,
        cells=tuple(_cells(options)),
        n_predict=options.n_predict or 256,
        rounds=options.rounds or 3,
        draft=options.draft,
        n_threads=options.threads,
        llama_server=options.llama_server,
        cool_c=cool_c,
        cool_s=cool_s,
        outputs=outputs,
        resume=options.resume,
        quick=options.quick,
    )


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Each cell once, the baseline first and its repetition last."""
    cells = [BASELINE]
    sources = options.sources
    if sources is None:
        installed = {source.name for source in installed_sources()}
        sources = [name for name in DEFAULT_SOURCES if name in installed]
    for source in sources:
        if source != NO_SOURCE:
            find_source(source).load()
            cells += [_source_cell(source, gate, options.draft) for gate in options.gate]
            cells += [Cell(source, AUTO_WIDTH, gated=True, keeps_gate=True)] * options.keep_gate
            cells += [Cell(source, AUTO_WIDTH, hindsight=True)] * options.hindsight
    for swept in options.sweep:
        cells += parse_sweep(swept, options.draft)
    if options.oracle is not None:
        cells += [Cell(ORACLE, width) for width in options.oracle or [options.draft]]
    cells += [Cell(SYNTHETIC, options.draft, (("p", p),)) for p in options.synthetic]
    if options.peers:
        cells += [
            Cell(LLAMA_CPP_PYTHON),
            Cell(LLAMA_CPP_PYTHON, LOOKUP_DEFAULT, (("lookup", f"lookup {LOOKUP_DEFAULT}"),)),
            Cell(LLAMA_CPP_PYTHON, options.draft, (("lookup", f"lookup {options.draft}"),)),
        ]
    if options.llama_server is not None:
        cells.append(Cell(LLAMA_SERVER))
        for kind in ("ngram-simple", "ngram-map-k", "draft-mtp"):
            cells.append(Cell(LLAMA_SERVER, options.draft, (("spec", kind),)))
    yield from dict.fromkeys([*cells, BASELINE_AGAIN])


def _source_cell(source: str, gate: str, draft: int) -> Cell:
    if gate == GATE_OFF:
        return Cell(source, draft)
    return Cell(source, AUTO_WIDTH, gated=True)


def parse_sweep(text: str, draft: int) -> list[Cell]:
    """The cells of ``SOURCE.OPTION=VALUE,VALUE[+OPTION=VALUE]``, ``draft`` being an option too.

    Raises:
        UsageError: it is not of that form, or a value is none for the option.
        SourceError: there is no such source.
    """
    head, separator, rest = text.partition("=")
    source, dot, first = head.partition(".")
    if not separator or not dot:
        raise UsageError(f"--sweep takes SOURCE.OPTION=VALUE,VALUE, not {text!r}")
    values, *others = rest.split("+")
    kinds = {option.field: option for option in options_of(source, find_source(source).load())}

    def setting(name: str, value: str) -> tuple[str, Any]:
        if name == DRAFT:
            return DRAFT, _whole(1, MAX_WIDTH)(value)
        if name == GATE:
            return GATE, _gates(value)[0]
        if name not in kinds:
            known = ", ".join([DRAFT, GATE, *kinds])
            raise UsageError(f"{source} has no option {name!r} to sweep; it has {known}")
        try:
            return name, kinds[name].value.convert(value)
        except (ValueError, KeyError):
            expected = kinds[name].value.expected
            raise UsageError(f"--sweep {source}.{name} takes {expected}, not {value!r}") from None

    fixed = dict(setting(*other.partition("=")[::2]) for other in others)
    cells = []
    for value in values.split(","):
        options = dict([setting(first, value)]) | fixed
        gated = options.pop(GATE, GATE_OFF) == GATE_COST
        width = options.pop(DRAFT, AUTO_WIDTH if gated else draft)
        cells.append(Cell(source, width, tuple(options.items()), gated=gated, swept=True))
    return cells


def _whole(low: int, high: int) -> Any:
    def convert(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"takes {low} to {high}, not {text!r}")
        return int(text)

    return convert


def _list(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def _gates(text: str) -> list[str]:
    gates = _list(text)
    if not gates or not set(gates) <= {GATE_OFF, GATE_COST}:
        raise argparse.ArgumentTypeError(f"takes {GATE_OFF} and {GATE_COST}, not {text!r}")
    return gates


def _widths(text: str) -> list[int]:
    return [_whole(1, AUTO_WIDTH)(item) for item in _list(text)]


def _shares(text: str) -> list[float]:
    try:
        shares = [float(item) for item in _list(text)]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"takes probabilities from 0 to 1, not {text!r}")
    return shares


def _cool(text: str) -> tuple[float, float]:
    degrees, _, seconds = text.partition(":")
    try:
        return float(degrees), float(seconds or DEFAULT_COOL_S)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes °C or °C:SECONDS, not {text!r}") from None


def _parser() -> Parser:
    parser = Parser(
        prog="bmoe bench",
        description="Measure whether speculation pays on this machine, model and text.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=79),
    )
    add = parser.add_argument
    add("-m", "--model", metavar="MODEL", type=Path, help="a GGUF file (default: the demo model)")
    add("-t", "--threads", type=_whole(1, MAX_THREADS), help="threads (default: physical cores)")
    add("-n", "--n-predict", metavar="N", type=_whole(1, 2**20), help="tokens a run (default 256)")
    add(
        "--sources",
        metavar="NAME,…",
        type=_list,
        help="draft sources beside none, which always runs twice (default ngram,mtp)",
    )
    add(
        "--prompts",
        metavar="NAME,…",
        type=_list,
        default=["prose", "copy"],
        help="built-in prompts or files (default prose,copy)",
    )
    add(
        "--draft",
        metavar="N",
        type=_whole(1, MAX_WIDTH),
        default=DEFAULT_WIDTH,
        help=f"most tokens a draft, 1 to {MAX_WIDTH} (default {DEFAULT_WIDTH})",
    )
    add("--repeat", metavar="N", dest="rounds", type=_whole(1, 1000), help="rounds (default 3)")
    add(
        "--sweep",
        metavar="SOURCE.OPTION=V,V[+OPTION=V]",
        action="append",
        default=[],
        help="a cell for each value of an option, draft among them; may repeat",
    )
    add(
        "--gate",
        metavar="off,cost",
        type=_gates,
        default=[GATE_OFF, GATE_COST],
        help="run each source without the gate, with it, or both (default off,cost)",
    )
    add(
        "--keep-gate",
        action="store_true",
        help="each source once more with one gate for all its runs, as a program that goes on "
        "answering keeps it",
    )
    add(
        "--oracle",
        metavar="N,N",
        type=_widths,
        nargs="?",
        const=[],
        help="a source that is always right, at the width of --draft or at these: the ceiling",
    )
    add(
        "--hindsight",
        action="store_true",
        help="each source once more, its drafts cut to what will be accepted: what a perfect gate "
        "would do",
    )
    add(
        "--synthetic",
        metavar="P,P",
        type=_shares,
        default=[],
        help="sources that are right with these probabilities",
    )
    add("--peers", action="store_true", help="llama-cpp-python's own loop and lookup too")
    add("--llama-server", metavar="PATH", type=Path, help="llama.cpp's server and its sources too")
    add(
        "--cool",
        metavar="C[:SECONDS]",
        type=_cool,
        default=(None, DEFAULT_COOL_S),
        help="before each run wait until the sensor is below this (300 s at most)",
    )
    add("--json", metavar="PATH", type=Path, help="write the whole record")
    add("--csv", metavar="PATH", type=Path, help="write a row a run")
    add("--md", metavar="PATH", type=Path, help="write the report in Markdown")
    add("--plot", metavar="DIR", type=Path, help="write plots as PNG files")
    add("--resume", metavar="PATH", type=Path, help="keep the finished rounds of this JSON record")
    add("--quick", action="store_true", help="short runs and two rounds, to see what it is like")
    return parser
