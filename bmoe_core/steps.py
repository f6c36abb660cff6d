"""What passes between the loop, the sources and the accounts: drafts and steps, made of tokens."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence

from attrs import field, frozen

from bmoe_core.meter import Cost


class FinishReason(str, enum.Enum):
    """Why a generation ended."""

    EOG = "eog"
    """The target chose an end-of-generation token."""
    LENGTH = "length"
    """``n_predict`` tokens were generated."""
    STOP = "stop"
    """The stop rule ended it, such as a stop string in the text."""
    CONTEXT = "context"
    """The last cell of the context is in use."""
    INTERRUPTED = "interrupted"
    """The consumer stopped before any of the others came."""
    FAILED = "failed"
    """An error ended it."""


@frozen
class Draft:
    """Tokens a source proposes, with what it knows of their worth.

    Attributes:
        tokens: proposed token ids, the first one following the settled token. Empty: decline.
        evidence: a small hashable that says how sure the source is (the matched length, a
            probability bucket), or a tuple with one such value a token. A source uses at most 64
            distinct values. None: the source does not say.
        confidence: the source's own estimate, 0 to 1, of the chance that a token is accepted if
            those before it are, or a tuple with one such number a token. A gate begins with it, and
            corrects it by what it sees. None: no estimate.
    """

    tokens: Sequence[int]
    evidence: Hashable | tuple[Hashable, ...] = None
    confidence: float | tuple[float, ...] | None = None


NO_DRAFT = Draft(tokens=())
"""A declined draft."""


@frozen
class Step:
    """One target decode of a generation after the prompt, and what came of it.

    ``n_accepted`` counts every draft token equal to the target's own choice, also an
    end-of-generation token, which ends the run and is not among ``tokens``.

    Attributes:
        tokens: the confirmed tokens, the settled token first and the accepted ones after it; those
            that a stop cuts off are not among them, so the last step of a generation may have none.
        n_drafted: draft tokens in the verify decode; 0 for a plain decode.
        n_accepted: draft tokens that the target confirmed; at most ``n_drafted``.
        evidence: the draft's, or None.
        n_proposed: tokens that the source proposed; at least ``n_drafted``.
        decode: what was spent in the target: the decode, the choice of tokens from its rows, and
            the rollback of what it rejected.
        draft_s: seconds in the source: drafting, and observing what was confirmed.
        loop_s: seconds between the two: what the loop itself costs.
        n_taken_back: tokens of earlier steps that a stop cuts off, in the last step alone.
    """

    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    decode: Cost
    draft_s: float
    loop_s: float = 0.0
    evidence: Hashable | tuple[Hashable, ...] = field(default=None, repr=False)
    n_proposed: int = 0
    n_taken_back: int = 0

    @property
    def decode_s(self) -> float:
        """Seconds in the target."""
        return self.decode.wall_s

    @property
    def drafted(self) -> bool:
        """Whether a draft was verified in this step."""
        return self.n_drafted > 0


def common_prefix(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many of the first tokens of two sequences are the same."""
    n = 0
    for token, other in zip(tokens, others, strict=False):
        if token != other:
            break
        n += 1
    return n


@frozen
class SourceFailure:
    """Why a source was switched off in the middle of a run, or what it did when the run ended.

    Attributes:
        source: the source's name.
        hook: the hook that failed, such as ``draft``.
        reason: what it raised or returned, or how long it hung.
        run_went_on: False where the source hung until the run was interrupted.
    """

    source: str
    hook: str
    reason: str
    run_went_on: bool = True

    def __str__(self) -> str:
        what = f"{self.source}: {self.hook} {self.reason}"
        if not self.run_went_on:
            return what
        return f"{what}; the source was switched off and the run went on with plain decodes"
