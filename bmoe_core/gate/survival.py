"""How likely the first tokens of a draft are to be accepted, all of them."""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, field

from bmoe_core.gate.ladder import LAST_DEPTHS, MAX_WIDTH

STRETCH_OF = tuple(
    next(i for i, last in enumerate(LAST_DEPTHS) if depth <= last)
    for depth in range(1, MAX_WIDTH + 1)
)
"""The stretch of the token at each index of a draft."""
PRIOR = 0.7
"""Acceptance of a first token before anything was seen."""
PRIOR_WEIGHT = 3.0
"""Tokens that the less specific estimate counts for in the more specific one."""
GROUP_WEIGHT = 3.0
"""Tokens, at most, that one value of the evidence counts for in the estimate for all of them."""
MEMORY = 0.95
"""Weight that an older token keeps for each newer one: about the last 20 count."""
LEAST_DOUBT = 0.02
"""The least chance of being wrong that a token is given, whatever its source believes."""
DOUBT_PRIOR = 1.0
"""Wrong tokens that the presumption counts for that a source judges itself rightly."""
MAX_EVIDENCE = 64
"""Distinct values of evidence that are told apart, as many as a source may use."""

_WEIGHT = tuple(MEMORY**n for n in range(MAX_WIDTH + 1))
_SUM = tuple((1.0 - weight) / (1.0 - MEMORY) for weight in _WEIGHT)
"""What so many tokens in a row add to a count."""

Counts = tuple[list[float], list[float]]
"""For each stretch the tokens accepted, and all of them; both decayed."""


@define(eq=False)
class Survival:
    """Learns how often a token follows its accepted predecessors.

    Three estimates of that chance, each the prior of the next: that of the stretch before, that of
    the stretch, and that of the stretch with this evidence. In the second one every value of the
    evidence has about the same say, however often it was seen: it stands for values not seen yet,
    and the commonest one does not.
    """

    _by_token: Counts = field(init=False)
    _overall: Counts = field(init=False)
    _by_evidence: dict[Hashable, Counts] = field(factory=dict, init=False)
    _n_wrong: float = field(default=0.0, init=False)
    _n_expected_wrong: float = field(default=0.0, init=False)
    """Of those, and of all tokens that their source had told its confidence in; decayed."""

    def __attrs_post_init__(self) -> None:
        self._by_token = _no_counts()
        self._overall = _no_counts()

    def average(self, n_right: float = 0.0) -> list[float]:
        """For each stretch the chance of its next token in the drafts that come.

        ``n_right`` right tokens of each stretch are imagined beside those seen.
        """
        return _shrunk(self._by_token, n_right=n_right)

    def overall(self, n_wrong: float = 0.0) -> list[float]:
        """For each stretch the chance of its next token in a draft of unknown evidence.

        ``n_wrong`` wrong tokens of each stretch are imagined beside those seen.
        """
        return _shrunk(self._overall, n_wrong=n_wrong)

    def given(
        self, evidence: Hashable, n_wrong: float = 0.0, confidence: float | None = None
    ) -> list[float]:
        """The same with an evidence, and perhaps a confidence, of the draft or of one token."""
        if confidence is None:
            priors = self.overall(n_wrong)
        else:
            priors = [self.corrected(confidence, n_wrong)] * len(LAST_DEPTHS)
        counts = self._by_evidence.get(evidence)
        if counts is None:
            return priors
        return [_posterior(*each) for each in zip(*counts, priors, strict=True)]

    def of_token(
        self, evidence: Hashable, stretch: int, confidence: float, n_wrong: float = 0.0
    ) -> float:
        """The chance of one token in that stretch."""
        prior, counts = self.corrected(confidence, n_wrong), self._by_evidence.get(evidence)
        if counts is None:
            return prior
        accepted, n = counts
        return _posterior(accepted[stretch], n[stretch], prior)

    def corrected(self, confidence: float, n_wrong: float = 0.0) -> float:
        """The chance of a token, by its source's confidence in it alone.

        What that leaves for being wrong is multiplied by the wrong tokens seen, for each that the
        source expected. ``n_wrong`` wrong ones are imagined beside those.
        """
        excess = (self._n_wrong + n_wrong + DOUBT_PRIOR) / (self._n_expected_wrong + DOUBT_PRIOR)
        return max(1.0 - max(1.0 - confidence, LEAST_DOUBT) * excess, 0.0)

    def judge(self, n_expected_wrong: float, n_right: int, *, then_wrong: bool) -> None:
        """Learn how well a source knows itself, from tokens that it told its confidence in.

        Args:
            n_expected_wrong: how many of those compared would be wrong by that.
            n_right: how many were accepted.
            then_wrong: the next one was not.
        """
        kept = _WEIGHT[n_right] * (MEMORY if then_wrong else 1.0)
        self._n_wrong = kept * self._n_wrong + then_wrong
        self._n_expected_wrong = kept * self._n_expected_wrong + n_expected_wrong

    def record(self, evidence: Hashable, index: int, n_right: int, *, then_wrong: bool) -> None:
        """Learn the fate of tokens of a draft, all those before them being accepted.

        Args:
            evidence: theirs.
            index: of the first of them.
            n_right: how many were accepted.
            then_wrong: the next one was not.
        """
        counts = self._by_evidence.get(evidence)
        if counts is None:
            counts = _no_counts()
            if len(self._by_evidence) < MAX_EVIDENCE:
                self._by_evidence[evidence] = counts
        while n_right:
            stretch = STRETCH_OF[index]
            run = min(n_right, LAST_DEPTHS[stretch] - index)
            self._count(counts, stretch, _WEIGHT[run], _SUM[run], _SUM[run])
            index += run
            n_right -= run
        if then_wrong:
            self._count(counts, STRETCH_OF[index], MEMORY, 0.0, 1.0)

    def _count(
        self, counts: Counts, stretch: int, kept: float, n_accepted: float, n_more: float
    ) -> None:
        accepted, n = counts
        all_accepted, all_n = self._overall
        # What this evidence said to the estimate for all of them, and what it says now.
        if n[stretch]:
            said = min(n[stretch], GROUP_WEIGHT)
            all_accepted[stretch] -= said * accepted[stretch] / n[stretch]
            all_n[stretch] -= said
        accepted[stretch] = accepted[stretch] * kept + n_accepted
        n[stretch] = n[stretch] * kept + n_more
        says = min(n[stretch], GROUP_WEIGHT)
        all_accepted[stretch] += says * accepted[stretch] / n[stretch]
        all_n[stretch] += says
        accepted, n = self._by_token
        accepted[stretch] = accepted[stretch] * kept + n_accepted
        n[stretch] = n[stretch] * kept + n_more


def _posterior(accepted: float, n: float, prior: float) -> float:
    """The chance of a token, of which ``accepted`` of ``n`` were accepted."""
    return (accepted + PRIOR_WEIGHT * prior) / (n + PRIOR_WEIGHT)


def _shrunk(counts: Counts, *, n_right: float = 0.0, n_wrong: float = 0.0) -> list[float]:
    """For each stretch the chance of its next token, that of the stretch before being its prior."""
    chance, chances = PRIOR, []
    imagined = n_right + n_wrong
    for accepted, n in zip(*counts, strict=True):
        chance = _posterior(accepted + n_right, n + imagined, chance)
        chances.append(chance)
    return chances


def _no_counts() -> Counts:
    return [0.0] * len(LAST_DEPTHS), [0.0] * len(LAST_DEPTHS)
