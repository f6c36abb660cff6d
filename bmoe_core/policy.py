"""What the loop asks of whoever decides whether, and how wide, to draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from bmoe_core.steps import NO_DRAFT, Draft


@frozen
class Outcome:
    """What came of a step.

    Attributes:
        followed: the tokens that the target decided on after the settled one: those accepted, then
            the next settled token. At least one.
        decode_s: seconds of the target's decode and of choosing tokens from its rows.
        rollback_s: seconds to take back what was rejected.
        n_pending: positions kept in that rollback which the next decode decodes again.
        policy_s: seconds that the policy itself took to decide.
    """

    followed: Sequence[int]
    decode_s: float
    rollback_s: float
    n_pending: int = 0
    policy_s: float = 0.0


@frozen
class Trial:
    """A step on trial, at the end of the prompt.

    Attributes:
        n_positions: of its decode, and the tokens that the source was asked for before it.
        decode_s: seconds of the decode.
        draft_s: seconds that asking took.
        draft: what the source proposed.
        followed: what the target would have said in its place, as far as that is known: up to the
            first token that the prompt has otherwise.
    """

    n_positions: int
    decode_s: float
    draft_s: float
    draft: Draft = NO_DRAFT
    followed: Sequence[int] = ()


class Policy(Protocol):
    """Decides for one source; called in the order below, from :meth:`ask` on once a step."""

    def begin(self) -> None:
        """A generation begins."""

    def calibration(self, most: int) -> Sequence[int]:
        """Numbers of positions, ``most`` at most, of steps whose times are wanted beforehand.

        The last tokens of the prompt are read in such decodes, if it is long enough, and before
        each the source is asked for as many tokens, which are not verified. Empty: nothing is
        wanted.
        """

    def calibrate(self, trials: Sequence[Trial]) -> None:
        """Learn from those steps, in their order."""

    def ask(self, room: int) -> int:
        """How many tokens to ask the source for, 0 to ``room``; 0: it is not asked."""

    def choose(self, draft: Draft, draft_s: float) -> int:
        """How many of the draft's tokens to verify, 0 to all of them.

        Args:
            draft: what the source proposed; empty where it declined or was not asked.
            draft_s: seconds that asking took.
        """

    def learn(self, outcome: Outcome) -> None:
        """See what came of the step."""


class VerifyAll:
    """Asks for as many tokens as there is room for, and verifies whatever comes."""

    def begin(self) -> None:
        """Nothing is remembered."""

    def calibration(self, most: int) -> Sequence[int]:
        """Nothing is wanted."""
        return ()

    def calibrate(self, trials: Sequence[Trial]) -> None:
        """Nothing is learned."""

    def ask(self, room: int) -> int:
        """All the room there is."""
        return room

    def choose(self, draft: Draft, draft_s: float) -> int:
        """The whole draft."""
        return len(draft.tokens)

    def learn(self, outcome: Outcome) -> None:
        """Nothing is learned."""
