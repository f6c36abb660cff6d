"""What the gate did in a generation, for the report."""

from __future__ import annotations

from typing import Any

from attrs import define


@define(kw_only=True)
class GateRecord:
    """Counts of one generation.

    Attributes:
        n_steps: steps.
        n_asked_steps: steps in which the source was asked.
        n_drafted_steps: steps in which a draft was verified.
        n_verified: draft tokens verified.
        n_declined: drafts made and not verified.
        n_declined_rightly: of those, drafts that turned out not to pay at any width, at the costs
            known then. A draft that could not be followed to its first wrong token is not counted.
        spent_s: seconds of decodes, rollbacks and drafts.
        saved_s: estimated seconds that plain decodes of the same tokens would have taken, less
            those.
    """

    n_steps: int = 0
    n_asked_steps: int = 0
    n_drafted_steps: int = 0
    n_verified: int = 0
    n_declined: int = 0
    n_declined_rightly: int = 0
    spent_s: float = 0.0
    saved_s: float = 0.0

    @property
    def mean_width(self) -> float | None:
        """Draft tokens a verify decode; None without any."""
        return self.n_verified / self.n_drafted_steps if self.n_drafted_steps else None

    @property
    def estimated_gain(self) -> float | None:
        """Estimated plain time / time spent; None before any was."""
        return 1.0 + self.saved_s / self.spent_s if self.spent_s else None

    def line(self) -> str:
        """The line of the report."""
        if not self.n_steps:
            return "gate: no steps"
        width = "" if self.mean_width is None else f", mean width {self.mean_width:.1f}"
        gain = "" if self.estimated_gain is None else f", est. gain ×{self.estimated_gain:.2f}"
        drafts = "draft" if self.n_declined == 1 else "drafts"
        rightly = f", {self.n_declined_rightly} of them rightly" if self.n_declined else ""
        return (
            f"gate: {self.n_drafted_steps} of {self.n_steps} steps drafted{width}{gain}; "
            f"declined {self.n_declined} {drafts}{rightly}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready values."""
        return {
            "n_asked_steps": self.n_asked_steps,
            "n_declined": self.n_declined,
            "n_declined_rightly": self.n_declined_rightly,
            "mean_width": self.mean_width,
            "estimated_gain": self.estimated_gain,
        }
