"""How much of the account a step may stake."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bmoe_core.gate.costs import DecodeCosts
from bmoe_core.gate.ladder import N_MORE, RUNGS

AT_EASE = 12.0
"""Plain decodes in the account above which no stake is too high for it."""
CAUTION = 3.0
"""Wrong tokens that are imagined beside those seen of each stretch, where the chances decide what
is staked: a source has to be right for a while before much is risked on it."""


def account_grows(
    left: float, chances: Sequence[float], rung: int, switch: float, costs: DecodeCosts
) -> bool:
    """Whether an account would grow in the long run if such steps were taken again and again.

    It does if the mean of its logarithm rises (J. L. Kelly, A New Interpretation of Information
    Rate, 1956). A step that gains on average may still be refused, since an account that is nearly
    spent earns nothing for long: it cannot pay for the next draft.

    Args:
        left: plain decodes in the account.
        chances: for each rung, the chance of a token that it has beyond the rung below.
        rung: of the step, 1 at least.
        switch: what it costs beside that the last decode had another width, in plain decodes.
        costs: what decodes cost.
    """
    cost = costs.low[rung] + switch
    survival, growth = 1.0, 0.0
    for reached in range(1, rung + 1):
        before = survival
        survival *= chances[reached] ** N_MORE[reached]
        n_tokens = 1 + RUNGS[reached - 1]
        after = left + n_tokens - cost - costs.after_rejection(reached)
        if after <= 0.0:
            return False
        growth += (before - survival) * math.log(after / left)
    return growth + survival * math.log((left + 1 + RUNGS[rung] - cost) / left) > 0.0
