"""Finding draft sources, opening one, and every way that can be refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import attrs
import numpy as np
import pytest

from bmoe_core import (
    Draft,
    OpenSource,
    SourceConflictError,
    SourceContractError,
    SourceImportError,
    SourceOptionError,
    SourceUnavailable,
    SourceVersionError,
    UnknownSourceError,
    hookimpl,
    installed_sources,
    open_source,
)
from bmoe_core.errors import summarize
from bmoe_core.listing import describe_sources
from bmoe_core.sources import choose_source, find_source

Install = Callable[..., None]

ECHO = """
    import attrs
    from bmoe_core import hookimpl

    @attrs.define(eq=False)
    class S:
        "Drafts the last token again."
        times: int = attrs.field(default=2, metadata={"help": "how often"})

        @hookimpl
        def draft(self, tokens, n_max):
            return [int(tokens[-1])] * min(self.times, n_max)
"""


@attrs.define(eq=False)
class Good:
    """A source that declines."""

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> None:
        """Decline."""


class TestFinding:
    def test_an_installed_source_is_listed_without_its_import(self, install: Install) -> None:
        """Listing reads entry points alone."""
        install("bad", "raise RuntimeError('imported')")
        found = {source.name: source for source in installed_sources()}
        assert (found["bad"].distribution, found["bad"].version) == ("dist-bad", "1.2")

    def test_opening_imports_only_the_one(self, install: Install) -> None:
        """A broken plugin harms nothing but itself."""
        install("bad", "raise RuntimeError('imported')")
        install("echo", ECHO)
        source = open_source("echo", {"times": 3})
        assert source.draft(np.array([7], np.int32), 8) == [7, 7, 7]

    def test_an_unknown_name_gets_the_near_and_the_installed_ones(self, install: Install) -> None:
        """The message offers what there is."""
        install("echo", ECHO)
        with pytest.raises(
            UnknownSourceError, match=r"'ehco'. Did you mean echo\?.*echo, mtp, ngram"
        ):
            find_source("ehco")

    def test_a_name_that_two_distributions_claim(self, install: Install) -> None:
        """Both are named."""
        install("echo", ECHO, distribution="one")
        install("echo", ECHO, distribution="two")
        with pytest.raises(SourceConflictError, match="'echo' is claimed by one and two"):
            find_source("echo")

    def test_the_name_of_plain_decoding_is_taken(self, install: Install) -> None:
        """No plugin may be called none."""
        install("none", ECHO)
        with pytest.raises(SourceConflictError, match="stands for plain decoding"):
            find_source("none")

    def test_a_failing_import_says_why(self, install: Install) -> None:
        """Distribution, version and the exception are named."""
        install("bad", "import no_such_module_at_all")
        with pytest.raises(
            SourceImportError, match=r"bad \(dist-bad 1.2\).*ModuleNotFoundError: No module named"
        ):
            open_source("bad")

    def test_another_version_of_the_core_is_asked_for(self, install: Install) -> None:
        """Said before anything of it is imported, with both versions and the remedy."""
        install("new", "raise RuntimeError('imported')", requires="bmoe-core>=99.1")
        with pytest.raises(
            SourceVersionError,
            match=r"^the draft source new \(dist-new 1.2\) needs bmoe-core >=99.1, and "
            rf"{version('bmoe-core')} is installed: pip install --upgrade bmoe-core dist-new$",
        ):
            open_source("new")

    def test_a_broken_plugin_stops_only_itself(self, install: Install) -> None:
        """What cannot be imported, wants another core, or claims a taken name is listed so."""
        install("bad", "import no_such_module_at_all")
        install("new", ECHO, requires="bmoe-core>=99.1")
        install("twice", ECHO, distribution="one")
        install("twice", ECHO, distribution="two")
        install("echo", ECHO)
        text = " ".join(" ".join(describe_sources()).split())
        assert "bad (dist-bad 1.2) broken: the draft source bad" in text
        assert "new (dist-new 1.2) broken: the draft source new (dist-new 1.2) needs" in text
        for owner in ("one", "two"):
            assert (
                f"twice ({owner} 1.2) broken: the draft source name 'twice' is claimed by one and "
                "two: uninstall one of them" in text
            )
        assert "echo (dist-echo 1.2) Drafts the last token again." in text
        assert open_source("echo").draft(np.array([7], np.int32), 1) == [7]

    def test_a_missing_attribute_is_a_failing_import(self, install: Install) -> None:
        """The entry point may name what is not there."""
        install("echo", ECHO, attribute="Missing")
        with pytest.raises(SourceImportError, match="AttributeError"):
            open_source("echo")

    def test_an_entry_point_must_name_a_class(self, install: Install) -> None:
        """An instance or a function is refused."""
        install("echo", "S = 5")
        with pytest.raises(SourceContractError, match="names 5, which is not a class"):
            open_source("echo")


class TestOneSource:
    @pytest.mark.parametrize(
        ("names", "chosen"),
        [([], None), (["none"], None), (["ngram"], "ngram"), (["ngram", "ngram"], "ngram")],
    )
    def test_choosing(self, names: list[str], chosen: str | None) -> None:
        """One name, or plain decoding."""
        assert choose_source(names) == chosen

    def test_two_exclude_each_other(self) -> None:
        """Both are named."""
        with pytest.raises(SourceConflictError, match="ngram and mtp were asked for"):
            choose_source(["ngram", "mtp"])

    def test_a_second_registration_is_refused(self) -> None:
        """The plugin manager holds one."""
        source = OpenSource("first", Good())
        with pytest.raises(SourceConflictError, match="first is registered, and second"):
            source.manager.register(Good(), "second")


class TestContract:
    def test_an_instance_can_be_adopted(self) -> None:
        """In Python a source need not be installed."""
        assert open_source(Good()).name == "Good"
        assert open_source(Good(), name="mine").name == "mine"

    def test_options_with_an_instance_are_refused(self) -> None:
        """Its fields are set already."""
        with pytest.raises(ValueError, match="options go with a source's name"):
            open_source(Good(), {"times": 3})

    def test_a_class_is_no_instance(self) -> None:
        """The message shows the call that was meant."""
        with pytest.raises(SourceContractError, match=r"is a class: give an instance, Good\("):
            OpenSource("good", Good)

    def test_draft_is_required(self) -> None:
        """Without the mark a method is not a hook."""

        class Unmarked:
            def draft(self, tokens: Any, n_max: int) -> None: ...

        with pytest.raises(SourceContractError, match="does not implement draft: mark"):
            open_source(Unmarked())

    def test_a_misspelt_hook_is_refused(self) -> None:
        """It would never be called."""

        class Misspelt(Good):
            @hookimpl
            def obserev(self, tokens: Any, n_past: int) -> None: ...

        with pytest.raises(SourceContractError, match="obserev"):
            open_source(Misspelt())

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("class S:\n    def draft(self, tokens, n_max): ...", "does not implement draft"),
            (ECHO.replace("(eq=False)", ""), "cannot be hashed"),
            (ECHO + "\n        @hookimpl\n        def opne(self, target): ...", "has a hook opne"),
        ],
    )
    def test_a_class_is_checked_before_it_is_made(
        self, install: Install, code: str, reason: str
    ) -> None:
        """So that `bmoe sources` lists it as broken."""
        install("echo", code)
        with pytest.raises(SourceContractError, match=reason):
            find_source("echo").load()
        assert any(reason in line for line in describe_sources())

    @pytest.mark.parametrize("raised", ["RuntimeError('no')", "OSError('no')", "SystemExit(0)"])
    def test_a_constructor_that_raises_anything(self, install: Install, raised: str) -> None:
        """A sentence, and never a silent end."""
        install(
            "echo", ECHO + f"\n        def __attrs_post_init__(self):\n            raise {raised}"
        )
        with pytest.raises(
            SourceContractError, match=f"echo cannot be made: {raised.split('(')[0]}"
        ):
            open_source("echo")

    def test_foreign_exceptions_are_told_in_one_line(self) -> None:
        """Also one that cannot be told at all."""

        class UnprintableError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("inside")

        assert summarize(ValueError("first\nsecond")) == "ValueError: first"
        assert summarize(ValueError()) == "ValueError"
        assert summarize(UnprintableError()) == "UnprintableError"

    def test_an_unknown_argument_is_refused(self) -> None:
        """A hook names arguments of its specification only."""

        class Wrong(Good):
            @hookimpl
            def observe(self, tokens: Any, position: int) -> None: ...

        with pytest.raises(SourceContractError, match="position"):
            open_source(Wrong())

    def test_an_unhashable_class_gets_the_remedy(self) -> None:
        """attrs.define alone makes instances unhashable."""

        @attrs.define
        class Plain:
            @hookimpl
            def draft(self, tokens: Any, n_max: int) -> None: ...

        with pytest.raises(SourceContractError, match=r"attrs.define\(eq=False\)"):
            open_source(Plain())

    def test_a_hook_takes_the_arguments_it_names(self) -> None:
        """So a hook can gain an argument without breaking a plugin."""

        class Few:
            @hookimpl
            def draft(self, n_max: int) -> Draft:
                return Draft([n_max])

        assert open_source(Few()).draft(np.array([1], np.int32), 4) == Draft([4])

    def test_every_hook_reaches_the_plugin(self) -> None:
        """prepare, open, begin, observe, draft and close, with their arguments by name."""
        calls: list[tuple[str, tuple[Any, ...]]] = []

        class Recorder:
            @hookimpl
            def prepare_model(self, model_params: Any) -> None:
                calls.append(("prepare_model", (model_params,)))

            @hookimpl
            def prepare_context(self, context_params: Any) -> None:
                calls.append(("prepare_context", (context_params,)))

            @hookimpl
            def open(self, target: Any) -> None:
                calls.append(("open", (target,)))

            @hookimpl
            def begin(self, prompt: Any, n_past: int) -> None:
                calls.append(("begin", (prompt, n_past)))

            @hookimpl
            def observe(self, tokens: Any, n_past: int) -> None:
                calls.append(("observe", (tokens, n_past)))

            @hookimpl
            def draft(self, tokens: Any, n_max: int) -> None:
                calls.append(("draft", (tokens, n_max)))

            @hookimpl
            def close(self) -> None:
                calls.append(("close", ()))

        source: Any = open_source(Recorder())
        expected: list[tuple[str, tuple[Any, ...]]] = [
            ("prepare_model", ("m",)),
            ("prepare_context", ("c",)),
            ("open", ("t",)),
            ("begin", ("p", 0)),
            ("observe", ("o", 1)),
            ("draft", ("d", 2)),
            ("close", ()),
        ]
        for hook, arguments in expected:
            getattr(source, hook)(*arguments)
        assert calls == expected

    def test_report_lines_carry_the_name(self) -> None:
        """A source without the hook has none, and one that fails at it says so."""

        class Reporting(Good):
            lines: Any = ("draft context 3.0 MiB",)

            @hookimpl
            def report(self) -> Any:
                return self.lines

        plugin = Reporting()
        source = open_source(plugin, name="mine")
        assert source.report() == ["mine: draft context 3.0 MiB"]
        plugin.lines = 5
        assert source.report() == [
            "mine: its report raised TypeError: 'int' object is not iterable"
        ]
        assert open_source(Good()).report() == []

    @pytest.mark.parametrize("hook", ["prepare_model", "prepare_context", "open"])
    def test_a_source_may_refuse_a_model(self, hook: str) -> None:
        """Its own sentence reaches the user as it is; any other exception gets one."""

        class Refusing(Good):
            error: Exception = SourceUnavailable("no head here: use --draft-source ngram")

            @hookimpl
            def prepare_model(self, model_params: Any) -> None:
                if hook == "prepare_model":
                    raise self.error

            @hookimpl
            def prepare_context(self, context_params: Any) -> None:
                if hook == "prepare_context":
                    raise self.error

            @hookimpl
            def open(self, target: Any) -> None:
                if hook == "open":
                    raise self.error

        plugin = Refusing()
        with pytest.raises(SourceUnavailable, match=r"^no head here: use --draft-source ngram$"):
            getattr(open_source(plugin), hook)(None)
        plugin.error = KeyError("oops")
        with pytest.raises(SourceUnavailable, match=f"its {hook} raised KeyError: 'oops'"):
            getattr(open_source(plugin), hook)(None)


class TestOptions:
    def test_an_unknown_option_gets_the_known_ones(self, install: Install) -> None:
        """The message lists what the source has."""
        install("echo", ECHO)
        with pytest.raises(SourceOptionError, match="no option 'time'; its options are: times"):
            open_source("echo", {"time": 3})

    def test_a_refused_value_keeps_the_source_s_reason(self, install: Install) -> None:
        """ValueError from a validator becomes SourceOptionError, which is one."""
        install(
            "picky",
            """
            import attrs
            from bmoe_core import hookimpl

            @attrs.define(eq=False)
            class S:
                p_min: float = attrs.field(default=0.0, validator=attrs.validators.le(1.0))
                @hookimpl
                def draft(self, tokens, n_max): ...
            """,
        )
        with pytest.raises(ValueError, match=r"picky: 'p_min' must be <= 1\.0: 1\.5"):
            open_source("picky", {"p_min": 1.5})

    def test_a_required_option_is_asked_for(self, install: Install) -> None:
        """The flag is named."""
        install(
            "needy",
            """
            import attrs
            from bmoe_core import hookimpl

            @attrs.define(eq=False)
            class S:
                path: str
                @hookimpl
                def draft(self, tokens, n_max): ...
            """,
        )
        with pytest.raises(SourceOptionError, match="needy needs --needy-path TEXT"):
            open_source("needy")
