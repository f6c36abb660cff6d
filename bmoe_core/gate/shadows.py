"""Drafts compared with what the target says over the next steps, without being verified."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from attrs import define, field

from bmoe_core.gate.costs import DecodeCosts
from bmoe_core.gate.ladder import RUNG_OF
from bmoe_core.gate.survival import Survival
from bmoe_core.steps import Draft


@define(eq=False)
class Shadow:
    """A draft on its way through the text.

    Attributes:
        tokens: of the draft, MAX_WIDTH at most.
        evidence: of the draft.
        confidence: of the draft.
        is_doubted: none of it was verified, and it is not known yet that it would have paid.
        n_right: tokens that were what the target said, and that were compared.
    """

    tokens: Sequence[int]
    evidence: Hashable
    confidence: float | tuple[float, ...] | None
    is_doubted: bool
    n_right: int = 0


@define(eq=False)
class Shadows:
    """Follows drafts token by token: those declined, and the rest of those verified.

    One is followed to its end. Those made meanwhile overlap with it and share its fate: of them the
    tokens of their own step are compared.
    """

    _survival: Survival
    _costs: DecodeCosts
    _followed: Shadow | None = field(default=None, init=False)

    @property
    def any(self) -> bool:
        """Whether a draft is being followed."""
        return self._followed is not None

    def forget(self) -> None:
        """The text that it was drafted for has ended."""
        self._followed = None

    def compare(self, draft: Draft, followed: Sequence[int], *, declined: bool) -> int:
        """Compare this step's draft, and the one that is followed, with what the target decided.

        Args:
            draft: of this step; empty where there was none.
            followed: the tokens that the target decided on in this step.
            declined: none of the draft was verified.

        Returns:
            How many declined drafts turned out not to have paid at any width, at the costs known.
        """
        shadows = [] if self._followed is None else [self._followed]
        if draft.tokens:
            shadows.append(Shadow(draft.tokens, draft.evidence, draft.confidence, declined))
        n_rightly, self._followed = 0, None
        for shadow in shadows:
            if not self._goes_on(shadow, followed):
                n_rightly += shadow.is_doubted
            elif self._followed is None:
                self._followed = shadow
        return n_rightly

    def _goes_on(self, shadow: Shadow, followed: Sequence[int]) -> bool:
        """Compare the next tokens; whether there are more, all being right so far."""
        tokens, first = shadow.tokens, shadow.n_right
        last = min(first + len(followed), len(tokens))
        index = first
        while index < last and tokens[index] == followed[index - first]:
            index += 1
        self._record(shadow.evidence, first, index - first, then_wrong=index < last)
        if shadow.confidence is not None:
            self._judge(shadow.confidence, first, index - first, then_wrong=index < last)
        shadow.n_right = index
        if shadow.is_doubted:
            costs = self._costs.ratio
            pays = any(1 + n > costs[RUNG_OF[n]] for n in range(first + 1, index + 1))
            shadow.is_doubted = not pays
        return index == last < len(tokens)

    def _record(self, evidence: Hashable, first: int, n_right: int, *, then_wrong: bool) -> None:
        if not isinstance(evidence, tuple):
            self._survival.record(evidence, first, n_right, then_wrong=then_wrong)
            return
        for index in range(first, first + n_right):
            self._survival.record(evidence[index], index, 1, then_wrong=False)
        if then_wrong:
            self._survival.record(evidence[first + n_right], first + n_right, 0, then_wrong=True)

    def _judge(
        self, confidence: float | tuple[float, ...], first: int, n_right: int, *, then_wrong: bool
    ) -> None:
        n = n_right + then_wrong
        if isinstance(confidence, tuple):
            n_expected_right = sum(confidence[first : first + n])
        else:
            n_expected_right = n * confidence
        self._survival.judge(n - n_expected_right, n_right, then_wrong=then_wrong)
