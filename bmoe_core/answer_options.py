"""The options that say what an answer is: how its tokens are chosen, and where it ends."""

from __future__ import annotations

import argparse
import math
from typing import Any

from bmoe_core.errors import UsageError
from bmoe_core.files import read_grammar
from bmoe_core.sampling import MAX_SEED, Sampling

_NEED_TEMPERATURE = ("top_k", "top_p", "min_p", "seed")
"""Settings without effect where the highest logit is taken."""


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, as the group ``answer``; what is not given is None."""
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--chat",
        action="store_true",
        help="the prompt is a question: apply the model's chat template",
    )
    group.add_argument(
        "--system", metavar="TEXT", help="with --chat or bmoe chat: what the model is told first"
    )
    group.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end the answer before this text; may be given several times",
    )
    group.add_argument(
        "--temp",
        metavar="T",
        type=_number(0.0, 1e6),
        help="draw tokens at this temperature (default 0: always the likeliest)",
    )
    group.add_argument(
        "--top-k",
        metavar="N",
        type=_whole(0, 2**31 - 1),
        help="draw from the N likeliest tokens; 0: from all (default 40)",
    )
    group.add_argument(
        "--top-p",
        metavar="P",
        type=_number(0.0, 1.0),
        help="draw from the likeliest tokens of probability P together (default 0.95)",
    )
    group.add_argument(
        "--min-p",
        metavar="P",
        type=_number(0.0, 1.0),
        help="draw from tokens at least P times as likely as the likeliest (default 0.05)",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=_whole(0, MAX_SEED),
        help="equal seeds draw equal tokens (default: another one each run)",
    )
    group.add_argument(
        "--repeat-penalty",
        metavar="X",
        type=_number(1e-6, 1e6),
        help="make the last 64 tokens less likely; 1: no penalty (default 1)",
    )
    group.add_argument(
        "--grammar-file", metavar="FILE", help="a GBNF grammar that the answer has to match"
    )


def sampling_of(options: argparse.Namespace) -> Sampling:
    """The settings that were given, and a seed where one is needed.

    Raises:
        UsageError: one has no effect without a temperature, or the grammar cannot be read.
    """
    names = (*_NEED_TEMPERATURE, "temp", "repeat_penalty")
    given: dict[str, Any] = {
        name: getattr(options, name) for name in names if getattr(options, name) is not None
    }
    if not given.get("temp"):
        for name in _NEED_TEMPERATURE:
            if name in given:
                raise UsageError(
                    f"--{name.replace('_', '-')} has no effect where the likeliest token is always "
                    "taken: add --temp 0.8, or another temperature"
                )
    if options.grammar_file is not None:
        given["grammar"] = read_grammar(options.grammar_file)
    return Sampling(**given).seeded()


def _whole(low: int, high: int) -> Any:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"takes {low} to {high}, not {text!r}")
        return value

    return convert


def _number(low: float, high: float) -> Any:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"takes {low:g} to {high:g}, not {text!r}")
        return value

    return convert
