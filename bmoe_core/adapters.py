"""Draft sources where llama-cpp-python's users are, and its draft models as draft sources."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, validators
from llama_cpp.llama_speculative import LlamaDraftModel

from bmoe_core.errors import SourceUnavailable
from bmoe_core.guard import SourceGuard
from bmoe_core.hookspecs import PROJECT_NAME, hookimpl
from bmoe_core.sources import OpenSource, open_source

NEEDS_A_TARGET = ("prepare_model", "prepare_context", "open")
ANY_TOKEN = 2**31
"""Token ids are below this: a draft model of llama-cpp-python is not told the vocabulary."""


def llama_cpp(
    source: str | object, *, num_pred_tokens: int = 10, options: dict[str, Any] | None = None
) -> LlamaDraftModel:
    """A draft source as the ``draft_model`` of :class:`llama_cpp.Llama`.

    Args:
        source: the name of an installed source, an instance of a source's class, or what
            :func:`bmoe_core.open_source` returned. It serves one ``Llama``.
        num_pred_tokens: most tokens a draft, as in llama-cpp-python.
        options: for a name, the fields to set.

    Raises:
        SourceUnavailable: the source needs the target itself, which llama-cpp-python does not
            give to a draft model.
        SourceError: as :func:`bmoe_core.open_source`.
    """
    opened = source if isinstance(source, OpenSource) else open_source(source, options)
    for hook in NEEDS_A_TARGET:
        if hasattr(getattr(opened.plugin, hook, None), f"{PROJECT_NAME}_impl"):
            raise SourceUnavailable(
                f"{opened.name} needs the model itself (it has the hook {hook}), and a draft model "
                "of llama-cpp-python is given tokens alone: run it with bmoe, or use a source that "
                "needs only tokens, such as ngram"
            )
    return _DraftModel(opened, num_pred_tokens)


class _DraftModel(LlamaDraftModel):
    """Turns whole histories back into what was confirmed since the last one."""

    def __init__(self, source: OpenSource, n_max: int) -> None:
        self._guard = SourceGuard(source, n_vocab=ANY_TOKEN, strict=False)
        self._n_max = n_max
        self._confirmed: list[int] = []

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """The draft after ``input_ids``, int32 of shape (n,); empty where the source declines.

        A source that fails is switched off, with a warning, and the text goes on without drafts.
        """
        working = self._guard.active
        tokens: list[int] = input_ids.tolist()
        # The last token is settled and not decoded yet.
        confirmed = tokens[:-1]
        n_held = len(self._confirmed)
        if confirmed[:n_held] != self._confirmed or not n_held:
            n_held = 0
            self._guard.begin(_read_only(confirmed), 0)
        if len(confirmed) > n_held:
            self._guard.observe(confirmed[n_held:], n_held)
        self._confirmed = confirmed
        draft = self._guard.draft(_read_only(tokens), self._n_max)
        if working and self._guard.failure is not None:
            warnings.warn(str(self._guard.failure), RuntimeWarning, stacklevel=2)
        return np.array(draft.tokens, np.intc)


def _read_only(tokens: list[int]) -> npt.NDArray[np.int32]:
    array = np.array(tokens, np.int32)
    array.flags.writeable = False
    return array


@define(eq=False)
class LlamaCppSource:
    """Any draft model of llama-cpp-python as a draft source.

    ::

        open_source(LlamaCppSource(LlamaPromptLookupDecoding()), name="lookup")

    Attributes:
        draft_model: called with the whole history; what it returns is cut to what there is room
            for.
    """

    draft_model: LlamaDraftModel = field(validator=validators.is_callable())

    @hookimpl
    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> npt.NDArray[np.intc]:
        """What the draft model returns."""
        # Some draft models write to what they are given, or return a part of it.
        return self.draft_model(tokens.astype(np.intc))[:n_max]
