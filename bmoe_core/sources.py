"""Finding the installed draft sources, opening one, and keeping it to one."""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pluggy
from attrs import frozen

from bmoe_core.errors import (
    SourceConflictError,
    SourceContractError,
    SourceImportError,
    SourceUnavailable,
    SourceVersionError,
    UnknownSourceError,
    UsageError,
    summarize,
)
from bmoe_core.hookspecs import PROJECT_NAME, DraftSource
from bmoe_core.options import construct, values_of
from bmoe_core.requirements import CORE, unmet_requirement
from bmoe_core.target.protocol import Target

ENTRY_POINT_GROUP = "bmoe.draft_sources"
NO_SOURCE = "none"
"""The name that stands for plain decoding."""


@frozen
class InstalledSource:
    """A draft source that some installed distribution offers; nothing of it is imported yet.

    Attributes:
        name: the entry point's name.
        distribution: the distribution that offers it.
        version: that distribution's version.
    """

    name: str
    distribution: str
    version: str
    _entry_point: importlib.metadata.EntryPoint

    def load(self) -> type:
        """Import the source's class.

        Raises:
            SourceVersionError: its distribution asks for another bmoe-core; nothing is imported.
            SourceImportError: the import failed, for whatever reason.
            SourceContractError: the entry point names something else than a class, or a class that
                does not fulfil the contract.
        """
        self._check_version()
        try:
            loaded = self._entry_point.load()
        except (Exception, SystemExit) as error:
            raise SourceImportError(
                f"the draft source {self.name} ({self.distribution} {self.version}) cannot be "
                f"imported: {summarize(error)}"
            ) from error
        if not inspect.isclass(loaded):
            raise SourceContractError(
                f"the entry point {self.name} of {self.distribution} names {loaded!r}, "
                "which is not a class"
            )
        _check_class(self.name, loaded)
        return loaded

    def _check_version(self) -> None:
        distribution = self._entry_point.dist
        asked = unmet_requirement(distribution.requires or ()) if distribution else None
        if asked:
            raise SourceVersionError(
                f"the draft source {self.name} ({self.distribution} {self.version}) needs "
                f"{CORE} {asked}, and {version(CORE)} is installed: "
                f"pip install --upgrade {CORE} {self.distribution}"
            )


def installed_sources() -> tuple[InstalledSource, ...]:
    """Every draft source that an installed distribution offers, by name.

    A name claimed by two distributions is there twice: see :func:`find_source`.
    """
    found = {
        InstalledSource(
            name=entry_point.name,
            distribution=entry_point.dist.name if entry_point.dist else "an unknown distribution",
            version=entry_point.dist.version if entry_point.dist else "",
            entry_point=entry_point,
        )
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    }
    return tuple(sorted(found, key=lambda source: (source.name, source.distribution)))


def find_source(name: str) -> InstalledSource:
    """The installed source called ``name``.

    Raises:
        UnknownSourceError: there is none; the message names the near ones and the installed ones.
        SourceConflictError: several distributions claim the name.
    """
    installed = installed_sources()
    claims = [source for source in installed if source.name == name]
    if len(claims) > 1 or (claims and name == NO_SOURCE):
        owners = " and ".join(source.distribution for source in claims)
        raise SourceConflictError(
            f"the draft source name {name!r} is claimed by {owners}"
            + (", but it stands for plain decoding" if name == NO_SOURCE else "")
            + ": uninstall one of them" * (len(claims) > 1)
        )
    if claims:
        return claims[0]
    names = sorted({source.name for source in installed})
    near = difflib.get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    has = f"installed: {', '.join(names)}" if names else "none is installed: pip install bmoe-ngram"
    raise UnknownSourceError(f"there is no draft source {name!r}.{hint} ({has})")


def choose_source(names: Sequence[str]) -> str | None:
    """The one source asked for, or None for plain decoding.

    Args:
        names: the names asked for; the same name twice counts once.

    Raises:
        SourceConflictError: more than one.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) > 1:
        raise SourceConflictError(
            f"one draft source at a time: {' and '.join(distinct)} were asked for, and they "
            "exclude each other; choose one"
        )
    if not distinct or distinct[0] == NO_SOURCE:
        return None
    return distinct[0]


class SourceManager(pluggy.PluginManager):
    """A plugin manager that holds one draft source at most."""

    def __init__(self) -> None:
        super().__init__(PROJECT_NAME)
        self.add_hookspecs(DraftSource)

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register the one source.

        Raises:
            SourceConflictError: there is one already.
        """
        held = [held_name for held_name, _ in self.list_name_plugin()]
        if held:
            raise SourceConflictError(
                f"one draft source at a time: {held[0]} is registered, and "
                f"{name or type(plugin).__name__} was to be registered beside it"
            )
        return super().register(plugin, name)


class OpenSource:
    """A draft source that fulfils the contract, ready to be called; see :class:`DraftSource`.

    Attributes:
        name: its name.
        plugin: the instance.
        manager: the plugin manager that holds it, and it alone.
        observes: whether it has the hook ``observe``.
    """

    def __init__(self, name: str, plugin: Any) -> None:
        """Check and register an instance.

        Raises:
            SourceContractError: it is no instance, lacks ``draft``, or has a hook or an argument
                that the contract does not know.
        """
        self.name = name
        self.plugin = plugin
        self.manager = SourceManager()
        _register(self.manager, name, plugin)
        hook = self.manager.hook
        # Bound once: these are called every step.
        self._begin, self._observe, self._draft = hook.begin, hook.observe, hook.draft
        self.observes = bool(hook.observe.get_hookimpls())

    @property
    def options(self) -> dict[str, Any]:
        """The values of its options, such as ``{"min_match": 3}``."""
        return values_of(self.plugin)

    def prepare_model(self, model_params: Any) -> None:
        """See :meth:`DraftSource.prepare_model`; raises as :meth:`open` does."""
        self._set_up("prepare_model", model_params=model_params)

    def prepare_context(self, context_params: Any) -> None:
        """See :meth:`DraftSource.prepare_context`; raises as :meth:`open` does."""
        self._set_up("prepare_context", context_params=context_params)

    def open(self, target: Target) -> None:
        """Let the source take the target.

        Raises:
            SourceUnavailable: it refused, or failed at it.
        """
        self._set_up("open", target=target)

    def _set_up(self, hook: str, **arguments: Any) -> None:
        try:
            getattr(self.manager.hook, hook)(**arguments)
        except SourceUnavailable:
            raise
        except (Exception, SystemExit) as error:
            raise SourceUnavailable(
                f"{self.name} cannot be used: its {hook} raised {summarize(error)}. "
                "Run with --draft-source none"
            ) from error

    def begin(self, prompt: npt.NDArray[np.int32], n_past: int) -> None:
        """See :meth:`DraftSource.begin`."""
        self._begin(prompt=prompt, n_past=n_past)

    def observe(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """See :meth:`DraftSource.observe`."""
        self._observe(tokens=tokens, n_past=n_past)

    def draft(self, tokens: npt.NDArray[np.int32], n_max: int) -> Any:
        """See :meth:`DraftSource.draft`."""
        return self._draft(tokens=tokens, n_max=n_max)

    def report(self) -> list[str]:
        """The source's own lines for the report, its name in front; none where it fails at it."""
        try:
            return [f"{self.name}: {line}" for line in self.manager.hook.report() or ()]
        except (Exception, SystemExit) as error:
            return [f"{self.name}: its report raised {summarize(error)}"]

    def close(self) -> None:
        """See :meth:`DraftSource.close`."""
        self.manager.hook.close()


def open_source(
    source: str | object, options: Mapping[str, Any] | None = None, *, name: str | None = None
) -> OpenSource:
    """Open a draft source by its name, or adopt an instance.

    Args:
        source: the name of an installed source, or an instance of a source's class.
        options: for a name, the fields to set, such as ``{"min_match": 5}``.
        name: for an instance, its name in reports; None: its class's name.

    Raises:
        SourceError: see the errors below it for what can be wrong with a source.
    """
    if isinstance(source, str):
        plugin = construct(source, find_source(source).load(), options or {})
        return OpenSource(source, plugin)
    if options:
        raise UsageError("options go with a source's name: an instance has its fields already")
    return OpenSource(name or type(source).__name__, source)


def _register(manager: SourceManager, name: str, plugin: Any) -> None:
    if inspect.isclass(plugin):
        raise SourceContractError(f"{name} is a class: give an instance, {plugin.__name__}(...)")
    _check_class(name, type(plugin))
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        raise SourceContractError(f"{name}: {_in_one_line(error)}") from error


def _check_class(name: str, source_class: type) -> None:
    """What can be said of a source without making one."""
    if source_class.__hash__ is None:
        raise SourceContractError(
            f"{name} cannot be hashed: declare its class with attrs.define(eq=False)"
        )
    mark = f"{PROJECT_NAME}_impl"
    hooks = {hook for hook in dir(source_class) if hasattr(getattr(source_class, hook), mark)}
    if "draft" not in hooks:
        raise SourceContractError(
            f"{name} does not implement draft: mark a method draft(self, tokens, n_max) with "
            "bmoe_core.hookimpl"
        )
    unknown = sorted(hook for hook in hooks if not hasattr(DraftSource, hook))
    if unknown:
        raise SourceContractError(
            f"{name} has a hook {unknown[0]}, which is none of a draft source's: is it misspelt?"
        )


def _in_one_line(error: pluggy.PluginValidationError) -> str:
    """pluggy's messages are several lines: plugin, hook, definition, reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)
