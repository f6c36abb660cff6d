"""Speculative decoding over llama-cpp-python with pip-installable draft sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmoe_core.errors import (
    BmoeError,
    ContextError,
    DecodeError,
    EmptyPromptError,
    ModelError,
    ModelFileError,
    OutputFileError,
    PromptError,
    PromptFileError,
    PromptTooLongError,
    RollbackError,
    RollbackUnsupportedError,
    RunError,
    SourceConflictError,
    SourceContractError,
    SourceError,
    SourceFailedError,
    SourceImportError,
    SourceOptionError,
    SourceUnavailable,
    SourceVersionError,
    UnknownSourceError,
    UsageError,
)
from bmoe_core.gate import CostGate
from bmoe_core.hookspecs import DraftSource, hookimpl
from bmoe_core.loop import Generation, argmax, generate
from bmoe_core.sampling import Sampling
from bmoe_core.sources import OpenSource, installed_sources, open_source
from bmoe_core.steps import Draft, FinishReason, SourceFailure, Step
from bmoe_core.target.protocol import Target
from bmoe_core.telemetry import Summary, Tally, report_lines

if TYPE_CHECKING:
    from bmoe_core.answer import Answer
    from bmoe_core.chat import Conversation
    from bmoe_core.generator import Generator
    from bmoe_core.target.llama import LlamaTarget
    from bmoe_core.target.model import LlamaModel
    from bmoe_core.target.sampler import Sampler

__all__ = [
    "Answer",
    "BmoeError",
    "ContextError",
    "Conversation",
    "CostGate",
    "DecodeError",
    "Draft",
    "DraftSource",
    "EmptyPromptError",
    "FinishReason",
    "Generation",
    "Generator",
    "LlamaModel",
    "LlamaTarget",
    "ModelError",
    "ModelFileError",
    "OpenSource",
    "OutputFileError",
    "PromptError",
    "PromptFileError",
    "PromptTooLongError",
    "RollbackError",
    "RollbackUnsupportedError",
    "RunError",
    "Sampler",
    "Sampling",
    "SourceConflictError",
    "SourceContractError",
    "SourceError",
    "SourceFailedError",
    "SourceFailure",
    "SourceImportError",
    "SourceOptionError",
    "SourceUnavailable",
    "SourceVersionError",
    "Step",
    "Summary",
    "Tally",
    "Target",
    "UnknownSourceError",
    "UsageError",
    "argmax",
    "generate",
    "hookimpl",
    "installed_sources",
    "open_source",
    "report_lines",
]

# Importing these loads llama.cpp: not for `bmoe sources`, nor for a draft source's own tests.
_LAZY = {
    "Answer": "bmoe_core.answer",
    "Conversation": "bmoe_core.chat",
    "Generator": "bmoe_core.generator",
    "LlamaModel": "bmoe_core.target.model",
    "LlamaTarget": "bmoe_core.target.llama",
    "Sampler": "bmoe_core.target.sampler",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
