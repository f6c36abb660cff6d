"""The contract of a draft source: what the core calls, when, and what it may rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pluggy

from bmoe_core.steps import Draft
from bmoe_core.target.protocol import Target

PROJECT_NAME = "bmoe"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a method of a draft source as the implementation of the hook of the same name."""


class DraftSource:
    """Proposes tokens that the target is likely to choose next, or declines.

    A source is a class, named by an entry point in the group ``bmoe.draft_sources``, whose methods
    are marked with :data:`hookimpl`. Only :meth:`draft` is required. Declare it with
    ``attrs.define(eq=False)``: its fields are its options, on the command line as
    ``--<source>-<field>`` and in Python as constructor arguments.

    A draft is a hint. The target decides every token; a wrong draft costs time and never changes
    the answer. One instance serves one sequence.
    """

    @hookspec
    def prepare_model(self, model_params: Any) -> None:
        """Set fields of the ``llama_model_params`` structure before the model loads.

        May raise :class:`bmoe_core.SourceUnavailable`.
        """

    @hookspec
    def prepare_context(self, context_params: Any) -> None:
        """Set fields of the ``llama_context_params`` structure before the target's context is made.

        The core has set ``n_ctx``, ``n_rs_seq`` and ``n_outputs_max`` for the draft width; a source
        may lower the width through ``n_rs_seq`` and raise what it needs for itself.
        """

    @hookspec
    def open(self, target: Target) -> None:
        """Take the loaded target, once before the first generation.

        Raise :class:`bmoe_core.SourceUnavailable` to refuse it, with a sentence that says what is
        missing and what to use instead. May come again after :meth:`close`.
        """

    @hookspec
    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """Forget the last request; a generation from ``prompt`` begins.

        Args:
            prompt: read-only int32 array of shape (n_prompt,).
            n_past: positions below it are still in the target from before and will not be
                observed again; a source that needs them keeps its own or declines.

        What a source has learned may outlive this call; positions may not.
        """

    @hookspec
    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """See what the target has just decoded and confirmed; comes after **every** target decode.

        Args:
            tokens: read-only int32 array: a chunk of the prompt, or the settled token and the
                accepted part of its draft. A rejected token is never shown.
            n_past: the position of ``tokens[0]``. One lower than positions already held voids
                those.

        The target's output rows of this decode can still be read here. The time spent counts as
        drafting time.
        """

    @hookspec(firstresult=True)
    def draft(
        self, tokens: npt.NDArray[np.int32], n_max: int
    ) -> Draft | Sequence[int] | npt.NDArray[np.integer[Any]] | None:
        """Propose up to ``n_max`` tokens to follow ``tokens``, or decline with None or nothing.

        Args:
            tokens: read-only int32 array of shape (n,): prompt, confirmed tokens and, last, the
                settled token. Do not keep it: its content changes after the call.
            n_max: at least 1; the most tokens that can be used.

        The call leaves no trace: asked twice it answers the same, and a draft that is never
        verified is not felt later.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def report(self) -> Sequence[str] | None:
        """Lines for the report after a run, such as what memory the source holds.

        The source's name is put in front of each.
        """

    @hookspec
    def close(self) -> None:
        """Free what :meth:`open` took and restore what it set; the target is still alive."""
