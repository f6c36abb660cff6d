"""The command line's options for streaming, and what they come to for a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from bmoe_core.errors import UsageError
from bmoe_core.moe.table import ExpertTable
from bmoe_core.routing.cache import MIB, CacheSize

DEFAULT_N_LANES = 4
MAX_N_LANES = 64
DENSE_WEIGHTS = ("warm", "mmap")
AUTO = "auto"


@frozen
class StreamOptions:
    """How experts are to be streamed.

    Attributes:
        cache_mb: MiB of memory for experts, or ``auto``.
        n_lanes: reads at the same time.
        dense_weights: ``warm`` or ``mmap``.
        drop_below: leave out a routed expert that would have to be read and whose weight is below
            this part of an equal share; None: never.
    """

    cache_mb: int | str = AUTO
    n_lanes: int = DEFAULT_N_LANES
    dense_weights: str = DENSE_WEIGHTS[0]
    drop_below: float | None = None

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.n_lanes <= MAX_N_LANES:
            raise UsageError(f"n_lanes is {self.n_lanes}, and may be 1 to {MAX_N_LANES}")
        if self.dense_weights not in DENSE_WEIGHTS:
            raise UsageError(f"dense_weights is {self.dense_weights!r}, and may be warm or mmap")
        if self.drop_below is not None and not 0 < self.drop_below <= 1:
            raise UsageError(f"drop_below is {self.drop_below}, and may be above 0 and up to 1")

    @classmethod
    def chosen(cls, options: argparse.Namespace) -> StreamOptions | None:
        """Those of a command line, or None where nothing is to be streamed.

        Raises:
            UsageError: an option of streaming was given, and streaming was not asked for.
        """
        given = {
            "--io-threads": options.io_threads,
            "--dense-weights": options.dense_weights,
            "--drop-cold-experts": options.drop_cold_experts,
        }
        if not options.moe_stream:
            for flag, value in given.items():
                if value is not None:
                    raise UsageError(f"{flag} is about streamed experts: add --moe-stream")
            return None
        return cls(
            options.cache_mb or AUTO,
            options.io_threads or DEFAULT_N_LANES,
            options.dense_weights or DENSE_WEIGHTS[0],
            options.drop_cold_experts,
        )

    def cache_size(self, path: Path, table: ExpertTable, n_bytes: int | None) -> CacheSize:
        """Memory for the experts of a model.

        Args:
            path: the model, for the message.
            table: its experts.
            n_bytes: a size that stands instead of :attr:`cache_mb`, or None.

        Raises:
            UsageError: it is less than the model needs.
        """
        minimum = -(-table.minimum_bytes // MIB)
        if n_bytes is not None:
            size = CacheSize(-(-n_bytes // MIB))
        elif isinstance(self.cache_mb, int):
            size = CacheSize(self.cache_mb)
        else:
            size = CacheSize.automatic(dense_bytes=table.dense_bytes, most_bytes=table.total_bytes)
        if size.mib < minimum or (n_bytes is not None and n_bytes < table.minimum_bytes):
            raise UsageError(
                f"a cache of {size} is too small for {path}: a batch may need all experts of a "
                f"layer at once, which takes {minimum} MiB (--cache-mb)"
            )
        return size


def add_options(parser: argparse.ArgumentParser, bounded: Callable[[int, int], Any]) -> None:
    """Add the options of streaming.

    Args:
        parser: the command line's.
        bounded: makes an argparse type of whole numbers between two.
    """
    group = parser.add_argument_group("models larger than memory")
    group.add_argument(
        "--moe-stream",
        action="store_true",
        help="read the experts of a mixture-of-experts model as they are needed, into a cache of "
        "--cache-mb (default auto)",
    )
    group.add_argument(
        "--io-threads",
        metavar="N",
        type=bounded(1, MAX_N_LANES),
        help=f"with --moe-stream: reads at the same time (default {DEFAULT_N_LANES})",
    )
    group.add_argument(
        "--dense-weights",
        metavar="|".join(DENSE_WEIGHTS),
        choices=DENSE_WEIGHTS,
        help="with --moe-stream: have all other weights read at the start, or as they are touched "
        f"(default {DENSE_WEIGHTS[0]})",
    )
    group.add_argument(
        "--drop-cold-experts",
        metavar="F",
        type=_share,
        help="with --moe-stream, lossy: leave out a routed expert that would have to be read and "
        "has less than F, 0 to 1, of an equal share of the weight",
    )


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"takes a number above 0 and up to 1, not {text!r}")
    return value
