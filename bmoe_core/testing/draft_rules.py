"""The rules that a source keeps as it drafts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bmoe_core.errors import SourceUnavailable
from bmoe_core.steps import Draft
from bmoe_core.target.protocol import Target
from bmoe_core.testing.answers import answer_differs, fake_targets
from bmoe_core.testing.class_rules import MakeSource
from bmoe_core.testing.histories import N_PHRASE_TOKENS, histories, phrases
from bmoe_core.testing.trial import Trial, break_rule, show, show_draft, trial

MakeTarget = Callable[[], Target]

N_MAX = 8
MOST_EVIDENCE = 64


class DraftRules:
    """Tests of a source on a target; see :class:`bmoe_core.testing.DraftSourceContract`.

    Attributes:
        max_gap: how far, in logits, a token of a drafted answer may lie below the plain choice on
            the targets of ``make_target``: 0.0 on f32 weights, about 0.5 on quantised ones.
    """

    max_gap = 0.0

    def test_drafts_fit(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """A draft has n_max tokens at most, all of the vocabulary."""
        rule = "a draft has at most n_max tokens, each a token id of the vocabulary"
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                for n_max in (1, 2, 3, N_MAX, 64):
                    tried.play(history, n_max)

    def test_evidence_has_few_values(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """64 at most, so that each is seen often enough to learn from."""
        rule = f"evidence has at most {MOST_EVIDENCE} distinct values"
        seen: set[Any] = set()
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                tried.begin(history[:1])
                for i, token in enumerate(history[:-1]):
                    tried.feed([token])
                    evidence = tried.draft(history[: i + 2], N_MAX).evidence
                    seen |= set(evidence) if isinstance(evidence, tuple) else {evidence}
                    if len(seen) > MOST_EVIDENCE:
                        break_rule(
                            tried.plugin,
                            rule,
                            f"after {show(history[: i + 2])} it has used {len(seen)}: {seen}",
                        )

    def test_lent_tokens_are_neither_written_nor_kept(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """The arrays belong to the loop, which writes them anew."""
        rule = "the tokens lent to a hook are not kept"
        with trial(make_source, make_target, rule) as tried:
            for history in histories(tried.target.n_vocab).values():
                tried.play(history, N_MAX)
                if tried.kept:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"after {tried.kept[0]} it still holds the array, or a part of it: copy "
                        "what you need, as with tokens.tolist()",
                    )

    def test_instances_share_nothing(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """Each serves a sequence of its own."""
        rule = "two instances share nothing"
        first, second = phrases(), phrases(swapped=True)
        alone = []
        for history in (first, second):
            with trial(make_source, make_target, rule) as tried:
                alone.append(list(_drafts_along(tried, history)))
        with (
            trial(make_source, make_target, rule) as one,
            trial(make_source, make_target, rule) as other,
        ):
            pairs = [(one, first, alone[0]), (other, second, alone[1])]
            for tried, history, _ in pairs:
                tried.begin(history[:1])
            for i in range(len(first) - 1):
                # Both see a token before either is asked.
                for tried, history, _ in pairs:
                    tried.feed([history[i]])
                for tried, history, expected in pairs:
                    draft = tried.draft(history[: i + 2], N_MAX)
                    if draft != expected[i]:
                        break_rule(
                            tried.plugin,
                            rule,
                            f"after {show(history[: i + 2])} it drafts {show_draft(expected[i])} "
                            f"alone, and {show_draft(draft)} beside another instance",
                        )

    def test_begin_forgets(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """After begin it drafts for tokens it has never seen as a new source does."""
        rule = "begin forgets the last request: its positions, and all that holds for it alone"
        earlier = phrases() * 2
        later = phrases(first=N_PHRASE_TOKENS)
        with trial(make_source, make_target, rule) as tried:
            new = list(_drafts_along(tried, later))
        with trial(make_source, make_target, rule) as tried:
            tried.play(earlier, N_MAX)
            for i, draft in enumerate(_drafts_along(tried, later)):
                if draft != new[i]:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"in a generation that has come to {show(later[: i + 2])} a new source "
                        f"drafts {show_draft(new[i])}, and one that had an earlier generation over "
                        f"{show(earlier)} drafts {show_draft(draft)}",
                    )

    def test_kept_positions(self, make_source: MakeSource, make_target: MakeTarget) -> None:
        """Where the target keeps a part of the last request, it drafts as if it had seen it now."""
        rule = "positions below the n_past of begin are still there: go on from them, or decline"
        kept = phrases()
        for n_past in (len(kept) // 2, len(kept) - 1):
            history = [*kept[:n_past], *phrases(first=N_PHRASE_TOKENS)]
            with trial(make_source, make_target, rule) as tried:
                new = tried.play(history, N_MAX)
            with trial(make_source, make_target, rule) as tried:
                if not tried.target.max_rollback:
                    return
                tried.begin(kept[:n_past])
                tried.feed(kept[:n_past])
                tried.begin(history[:-1], n_past)
                tried.feed(history[n_past:-1])
                draft = tried.draft(history, N_MAX)
                if draft.tokens and draft != new:
                    break_rule(
                        tried.plugin,
                        rule,
                        f"with {n_past} tokens kept, it drafts {show_draft(draft)} after "
                        f"{show(history)}, and {show_draft(new)} where it sees them at once",
                    )

    def test_drafting_leaves_no_trace(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """Asked or not, asked twice, asked and not verified: the next draft is the same."""
        rule = "draft leaves no trace"
        history = phrases()
        with trial(make_source, make_target, rule) as tried:
            unasked = tried.play(history, N_MAX)
            again = tried.draft(history, N_MAX)
            if again != unasked:
                break_rule(
                    tried.plugin,
                    rule,
                    f"draft({show(history)}, {N_MAX}) returns {show_draft(unasked)}, and "
                    f"{show_draft(again)} when asked again",
                )
        with trial(make_source, make_target, rule) as tried:
            *_, asked = _drafts_along(tried, history)
            if asked != unasked:
                break_rule(
                    tried.plugin,
                    rule,
                    f"after {show(history)} it drafts {show_draft(unasked)}, and "
                    f"{show_draft(asked)} where it was asked after each token and no draft was "
                    "verified",
                )

    def test_nothing_is_drafted_after_close(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """What it drafted from has been given back; closing twice is allowed."""
        rule = "a closed source declines"
        with trial(make_source, make_target, rule) as tried:
            if not hasattr(tried.plugin, "close"):
                return
            history = phrases()
            tried.play(history, N_MAX)
            tried.close()
            draft = tried.draft(history, N_MAX)
            if draft.tokens:
                break_rule(
                    tried.plugin,
                    rule,
                    f"after close(), draft({show(history)}, {N_MAX}) returned {show_draft(draft)}",
                )

    def test_the_answer_is_the_plain_one(
        self, make_source: MakeSource, make_target: MakeTarget
    ) -> None:
        """On every fake that it takes, and on its own target, at every width."""
        rule = "the answer is that of plain decoding"
        own = {"the target of make_target": (make_target, self.max_gap)}
        for name, (make, max_gap) in {**fake_targets(), **own}.items():
            for width in (1, 3, N_MAX):
                plugin = make_source()
                try:
                    difference = answer_differs(plugin, make, width, max_gap)
                except SourceUnavailable as error:
                    if name in own:
                        break_rule(plugin, rule, f"open() refused {name}: {error}")
                    break
                if difference:
                    break_rule(plugin, rule, f"on {name}, at draft width {width}, {difference}")

    def test_the_time_of_a_draft_is_reported(
        self,
        make_source: MakeSource,
        make_target: MakeTarget,
        record_property: Callable[[str, object], None],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Measured over short and long histories; how much is too much is not judged here."""
        figures = []
        with trial(make_source, make_target, "draft ends") as tried:
            for n in (64, 512, 4096):
                if n < tried.target.n_ctx:
                    history = [*range(n % 7), *(i * i % 13 for i in range(n - n % 7))]
                    tried.play(history, N_MAX)
                    figures.append(f"{_median_us(tried, history):.1f} µs after {n} tokens")
        figure = f"draft takes {', '.join(figures)}"
        record_property("draft", figure)
        with capsys.disabled():
            print(f"\n{type(tried.plugin).__name__}: {figure}")


def _drafts_along(tried: Trial, history: list[int]) -> Iterator[Draft]:
    """The drafts after each token of a history from the second on, none of them verified."""
    tried.begin(history[:1])
    for i, token in enumerate(history[:-1]):
        tried.feed([token])
        yield tried.draft(history[: i + 2], N_MAX)


def _median_us(tried: Trial, history: list[int], n: int = 25) -> float:
    lent = np.array(history, np.int32)
    times = []
    for _ in range(n):
        started = time.perf_counter()
        tried.source.draft(lent, N_MAX)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
