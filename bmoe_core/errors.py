"""Every error that bmoe raises.

    BmoeError
    ├── UsageError                 a command line or call that cannot be carried out (a ValueError)
    ├── PromptError                the prompt cannot be used
    │   ├── EmptyPromptError
    │   ├── PromptFileError
    │   └── PromptTooLongError
    ├── OutputFileError            a file to be written cannot be
    ├── ModelError                 the model cannot be used
    │   ├── ModelFileError
    │   ├── ContextError
    │   ├── RollbackUnsupportedError
    │   ├── RoutingUnsupportedError
    │   └── StreamingUnsupportedError
    ├── SourceError                the draft source cannot be used
    │   ├── UnknownSourceError
    │   ├── SourceConflictError
    │   ├── SourceImportError
    │   ├── SourceVersionError
    │   ├── SourceContractError
    │   ├── SourceOptionError      (also a ValueError)
    │   └── SourceUnavailable
    └── RunError                   a run that had begun failed
        ├── DecodeError
        ├── ExpertReadError
        ├── RollbackError
        ├── SourceFailedError      only under strict
        └── PeerError              another program that a bench compares with

``str(error)`` is one or two plain sentences for the user: what is wrong and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class BmoeError(Exception):
    """Base of every error of this package; ``exit_status`` is what the command line ends with."""

    exit_status: ClassVar[int] = 2


def summarize(error: BaseException) -> str:
    """An exception of foreign code in one line: its type, and the first line of what it says."""
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class UsageError(BmoeError, ValueError):
    """A command line or call that cannot be carried out as given."""


class PromptError(BmoeError):
    """The prompt cannot be used."""


class EmptyPromptError(PromptError):
    """The prompt holds no text, or no tokens."""


class PromptFileError(PromptError):
    """The prompt's file cannot be read, or is not UTF-8 text."""


class PromptTooLongError(PromptError):
    """The prompt leaves no room in the context for a single new token."""

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt} tokens and the context holds {n_ctx}, which leaves no room "
            "for an answer: shorten the prompt, or raise the context size (-c)"
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class OutputFileError(BmoeError):
    """A file that was to be written cannot be opened."""


class ModelError(BmoeError):
    """The model cannot be used."""


class ModelFileError(ModelError):
    """The model file is missing, unreadable, not GGUF, or damaged."""


class ContextError(ModelError):
    """llama.cpp could not create a context over a model that had loaded."""


class RollbackUnsupportedError(ModelError):
    """Drafts were asked for on a model whose memory cannot take a rejected draft back."""


class RoutingUnsupportedError(ModelError):
    """The routing was asked for, and the installed llama.cpp does not let it be read."""


class StreamingUnsupportedError(ModelError):
    """The experts were to be streamed, and the model, the system or llama.cpp does not allow it."""


class SourceError(BmoeError):
    """The draft source cannot be used."""


class UnknownSourceError(SourceError):
    """No installed distribution offers a draft source of that name."""


class SourceConflictError(SourceError):
    """Two draft sources where there may be one, or two distributions that claim one name."""


class SourceImportError(SourceError):
    """The source's entry point could not be imported."""


class SourceVersionError(SourceError):
    """The source's distribution was written for another version of bmoe-core."""


class SourceContractError(SourceError):
    """The source does not fulfil the contract of :class:`bmoe_core.DraftSource`."""


class SourceOptionError(SourceError, ValueError):
    """An option of a source has a value that it does not take, or belongs to another source."""


class SourceUnavailable(SourceError):  # noqa: N818 - raised by sources: it reads as a state
    """Raised by a source's ``open`` (or ``prepare_*``): it cannot draft for this model."""


class RunError(BmoeError):
    """A run that had begun failed."""

    exit_status = 1


class DecodeError(RunError):
    """llama.cpp failed to decode a batch."""


class ExpertReadError(RunError):
    """Streamed experts could not be read, or their file changed; going on would be wrong."""


class RollbackError(RunError):
    """The target's memory could not be taken back to the position asked for."""


class SourceFailedError(RunError):
    """A source raised or broke its contract during a run, and the run was strict."""


class PeerError(RunError):
    """Another program that a bench compares with cannot be run, or failed."""
