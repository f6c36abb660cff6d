"""One file that a run can be resumed from, replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from .model import DemoModel


class Run:
    """Step, decay start, weights and optimizer state. Data and RNG follow from the step."""

    def __init__(
        self, path: Path, model: DemoModel, engines: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.path, self.model, self.engines = path, model, engines
        self.step = 0
        self.decay_at = 0

    def resume(self) -> None:
        """Go on from the file, if there is one. A decay that has begun keeps its start."""
        if not self.path.exists():
            return
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for engine, saved in zip(self.engines, state["engines"], strict=True):
            engine.load_state_dict(saved)
        self.step = state["step"]
        if state["decay_at"] < self.step:
            self.decay_at = state["decay_at"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "engines": [engine.state_dict() for engine in self.engines],
            "step": self.step,
            "decay_at": self.decay_at,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)


def load_weights(model: DemoModel, path: Path) -> None:
    """Weights only, from a checkpoint of any run."""
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
