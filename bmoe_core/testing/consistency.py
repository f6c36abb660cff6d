"""Whether tokens are those that plain greedy decoding could have chosen.

The width of a batch changes the last bits of a logit, so on quantised weights a speculated answer
may part from the plain one at a near tie, and rightly so. What a correct loop never does is emit a
token whose plain logit is far from the highest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bmoe_core.target.protocol import Target


def plain_gaps(target: Target, tokens: Sequence[int], n_prompt: int) -> npt.NDArray[np.float32]:
    """How far below the highest logit each generated token lies when decoded plainly.

    Args:
        target: cleared here; holds all tokens but the last afterwards.
        tokens: a prompt and what was generated after it.
        n_prompt: tokens of the prompt.

    Returns:
        float32 array of shape (len(tokens) - n_prompt,): highest logit minus the token's own, 0
        where the token is the plain choice. Every row is that of a single-token decode, the first
        one's that of the prompt.
    """
    target.clear()
    for start in range(0, n_prompt, target.n_batch):
        chunk = tokens[start : min(start + target.n_batch, n_prompt)]
        row = target.decode(chunk, n_rows=1)[0]
    gaps = np.empty(len(tokens) - n_prompt, np.float32)
    for i, token in enumerate(tokens[n_prompt:]):
        gaps[i] = row.max() - row[token]
        if i + 1 < len(gaps):
            row = target.decode([token], n_rows=1)[0]
    return gaps
