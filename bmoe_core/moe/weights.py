"""Which experts to leave out, given what is held and how much the router gave to each.

The rule is BigMoeOnEdge's ``--drop-cold-experts``: quality is spent only where it saves a read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def leave_out_cold(
    experts: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    is_held: Callable[[int], bool],
    share: float,
) -> int:
    """Leave out experts that would have to be read and hardly count, in place.

    An expert is left out of a position where it is not held, its weight is below ``share`` of an
    equal one, it is not the position's heaviest, and no other position has it read anyway. Its
    weight becomes 0 and those of the others grow to the same sum; the heaviest expert takes its
    place, so that what is multiplied by 0 is in memory.

    Args:
        experts: (n_positions, n_used), the experts of each position; changed.
        weights: (n_positions, n_used), their weights, not negative; changed.
        is_held: whether an expert is in memory.
        share: above 0, at most 1.

    Returns:
        How many were left out, counted once a position.
    """
    rows = np.arange(len(experts))
    heaviest = weights.argmax(axis=1)
    sums = weights.sum(axis=1, keepdims=True)
    light = weights < share * sums / experts.shape[1]
    light[rows, heaviest] = False
    kept = {int(expert) for expert in experts[~light]}
    cold = [e for e in np.unique(experts[light]).tolist() if e not in kept and not is_held(e)]
    left_out = light & np.isin(experts, cold)
    if not left_out.any():
        return 0
    stand_in = experts[rows, heaviest][:, None]
    np.copyto(experts, np.broadcast_to(stand_in, experts.shape), where=left_out)
    weights[left_out] = 0
    weights *= sums / weights.sum(axis=1, keepdims=True)
    return int(left_out.sum())
