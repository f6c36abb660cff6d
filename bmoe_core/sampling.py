"""How tokens are chosen: the settings of llama.cpp's sampler chain."""

from __future__ import annotations

import secrets
from typing import Any

import attrs
from attrs import Attribute, field, frozen

from bmoe_core.errors import UsageError

MAX_SEED = 2**32 - 2
"""llama.cpp takes 32 bits, and the highest value for a wish to be given some seed."""


def _within(low: float, high: float | None = None) -> Any:
    def check(_instance: object, attribute: Attribute[Any], value: Any) -> None:
        # Written so that NaN fails.
        if value is None or (value >= low and (high is None or value <= high)):
            return
        span = f"at least {low}" if high is None else f"{low} to {high}"
        raise UsageError(f"{attribute.name} takes {span}, not {value}")

    return check


def _penalty(_instance: object, attribute: Attribute[Any], value: float) -> None:
    if not 0 < value < float("inf"):
        raise UsageError(f"{attribute.name} takes a number above 0, not {value}")


@frozen(kw_only=True)
class Sampling:
    """Settings of llama.cpp's samplers, which run in the order of the attributes.

    The defaults are those of llama.cpp's own programs, but for the temperature. With it at 0 the
    choice is the highest logit that the grammar and the penalty leave.

    Attributes:
        grammar: what the answer has to match, in GBNF with a rule ``root``; None: anything.
        repeat_penalty: divides the positive logits of the last 64 tokens, prompt included, and
            multiplies their negative ones; 1 changes nothing.
        top_k: only so many of the likeliest tokens; 0: all.
        top_p: only the likeliest tokens that have this probability together; 1: all.
        min_p: only tokens with this share of the likeliest one's probability; 0: all.
        temp: divides the logits; 0: always the highest one.
        seed: equal seeds draw equal tokens; None: some seed, which :meth:`seeded` settles.

    Raises:
        UsageError: a value is out of its range.
    """

    grammar: str | None = None
    repeat_penalty: float = field(default=1.0, validator=_penalty)
    top_k: int = field(default=40, validator=_within(0, 2**31 - 1))
    top_p: float = field(default=0.95, validator=_within(0.0, 1.0))
    min_p: float = field(default=0.05, validator=_within(0.0, 1.0))
    temp: float = field(default=0.0, validator=_within(0.0, 1e6))
    seed: int | None = field(default=None, validator=_within(0, MAX_SEED))

    @property
    def is_greedy(self) -> bool:
        """Whether the highest logit is chosen, whatever came before."""
        return self.temp == 0 and self.repeat_penalty == 1 and self.grammar is None

    def seeded(self) -> Sampling:
        """The same, with a seed where one is needed."""
        if self.temp == 0 or self.seed is not None:
            return self
        return attrs.evolve(self, seed=secrets.randbelow(MAX_SEED + 1))

    def to_dict(self) -> dict[str, Any] | None:
        """The settings for a record, the grammar left out; None where the choice is greedy."""
        if self.is_greedy:
            return None
        return attrs.asdict(self, filter=attrs.filters.exclude("grammar"))


GREEDY = Sampling()
