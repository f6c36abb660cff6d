"""Text as its tokens come, and stop strings wherever they begin and end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmoe_core import FinishReason, Generation, Tally, UsageError, generate
from bmoe_core.answer_text import AnswerText
from bmoe_core.testing import FakeTarget, ScriptedSource, hashed

# Tokens of several letters, and the two bytes of "é" and the four of "🜂" in tokens of their own.
PIECES = [
    *(b"a", b"b", b"ab", b"ba", b"c", b"\n", b"\xc3", b"\xa9"),
    *(b"\xf0\x9f", b"\x9c\x82", b"abc", b"", b"d", b"bc\n", b" a", b"\xff"),
]


def detokenize(tokens: Sequence[int]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def pieces_of(text: AnswerText, steps: Sequence[Sequence[int]]) -> list[str]:
    """What comes out after each step, and at the end."""
    out = []
    for step in steps:
        text.add(step)
        out.append(text.take())
    return [*out, text.finish(10**6)]


class TestPieces:
    def test_a_character_comes_when_it_is_whole(self) -> None:
        """Its first byte shows nothing, its second the character."""
        assert pieces_of(AnswerText(detokenize), [[0, 6], [7], [8], [9]]) == ["a", "é", "", "🜂", ""]

    def test_bytes_that_are_no_character_are_replaced(self) -> None:
        """As soon as that is certain, or at the end."""
        assert pieces_of(AnswerText(detokenize), [[15], [6]]) == ["\ufffd", "", "\ufffd"]

    def test_what_may_begin_a_stop_string_is_held_back(self) -> None:
        """And comes when it cannot any more, or at the end."""
        text = AnswerText(detokenize, ["abd"])
        assert pieces_of(text, [[0], [1], [4], [0]]) == ["", "", "abc", "", "a"]

    def test_nothing_of_a_stop_string_comes(self) -> None:
        """It may begin within a token, which stays, and end within another."""
        text = AnswerText(detokenize, ["bcb"])
        assert text.add([0]) is None
        assert text.take() == "a"
        # "ab", then "c", then "ba": the string begins in the second of four tokens.
        assert text.add([2, 4, 3]) == 2
        assert text.take() == "a"
        assert text.finish(2) == ""
        assert text.text == "aa"

    def test_the_stop_string_that_ends_first_counts(self) -> None:
        """Of two that end in one token, the one that begins first."""
        assert AnswerText(detokenize, ["c", "bc", "d"]).add([0, 1, 4, 12]) == 1
        assert AnswerText(detokenize, ["c", "abc"]).add([12, 10]) == 1

    def test_a_stop_string_at_the_very_beginning(self) -> None:
        """Nothing stays."""
        text = AnswerText(detokenize, ["ab"])
        assert text.add([2]) == 0
        assert text.finish(0) == ""

    def test_tokens_that_were_never_confirmed_are_left_out(self) -> None:
        """An interrupt came after the stop rule had seen them."""
        text = AnswerText(detokenize, ["zz"])
        text.add([0, 1])
        assert text.take() == "ab"
        text.add([4, 12])
        assert text.finish(3) == "c"

    @pytest.mark.parametrize("stop", ["", "\udc80"])
    def test_stop_strings_that_are_none(self, stop: str) -> None:
        """Empty, or no Unicode."""
        with pytest.raises(UsageError, match="stop string"):
            AnswerText(detokenize, [stop])

    @given(
        tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=30),
        cuts=st.lists(st.integers(1, 5), max_size=30),
        stops=st.lists(st.text("abcd\né🜂", min_size=1, max_size=4), max_size=3),
    )
    def test_joined_pieces_are_the_text(
        self, tokens: list[int], cuts: list[int], stops: list[str]
    ) -> None:
        """Cut at the first stop string, however the tokens are grouped."""
        text, joined, rest = AnswerText(detokenize, stops), "", list(tokens)
        n_stay = None
        for cut in [*cuts, *[1] * len(tokens)]:
            step, rest = rest[:cut], rest[cut:]
            n_stay = text.add(step)
            joined += text.take()
            if n_stay is not None:
                break
        joined += text.finish(len(tokens) if n_stay is None else n_stay)
        expected, n_expected = reference(tokens, stops)
        assert joined == text.text == expected
        assert n_stay == n_expected


def reference(tokens: Sequence[int], stops: Sequence[str]) -> tuple[str, int | None]:
    """Found anew after every token: the text, and the tokens that stay if it was stopped."""
    for n in range(1, len(tokens) + 1):
        data = detokenize(tokens[:n])
        begins = [data.find(stop.encode()) for stop in stops]
        found = [begin for begin in begins if begin >= 0]
        if found:
            begin = min(found)
            n_stay = next(i for i in range(n + 1) if len(detokenize(tokens[:i])) >= begin)
            return data[:begin].decode(errors="replace"), n_stay
    return detokenize(tokens).decode(errors="replace"), None


def adversary(plain: Sequence[int], seed: int) -> ScriptedSource:
    random_ = random.Random(seed)

    def script(tokens: Sequence[int], n_max: int) -> list[int]:
        coming = list(plain[len(tokens) :][:n_max])
        n_right = random_.randint(0, len(coming))
        noise = [random_.randrange(16) for _ in range(n_max)]
        return random_.choice([[], coming, (coming[:n_right] + noise)[:n_max]])

    return ScriptedSource(script)


PROMPT = [1, 2, 3]


class TestInTheLoop:
    @settings(max_examples=400)
    @given(
        seed=st.integers(0, 10**6),
        stops=st.lists(st.text("abcd\né", min_size=1, max_size=3), min_size=1, max_size=2),
        width=st.integers(0, 8),
        recurrent=st.booleans(),
        eog=st.sets(st.integers(0, 15), max_size=1),
        n_predict=st.integers(1, 40),
    )
    def test_text_tokens_counts_and_memory_agree(
        self,
        seed: int,
        stops: list[str],
        width: int,
        recurrent: bool,
        eog: set[int],
        n_predict: int,
    ) -> None:
        """Whatever is drafted, and whichever end comes first."""
        rule = hashed(order=3, seed=seed)
        plain = generate(FakeTarget(rule=rule), PROMPT, n_predict=60)
        list(plain)
        answer = plain.tokens[3 : 3 + n_predict]
        # An end of generation right after the last token counts.
        coming = plain.tokens[3 : 4 + n_predict]
        ends = [i for i, token in enumerate(coming) if token in eog]
        reason = FinishReason.LENGTH
        if ends:
            answer, reason = answer[: ends[0]], FinishReason.EOG
        expected, n_stay = reference(answer, stops)
        if n_stay is not None:
            answer, reason = answer[:n_stay], FinishReason.STOP

        target = FakeTarget(rule=rule, recurrent=recurrent, eog=frozenset(eog))
        text = AnswerText(detokenize, stops)
        generation = generate(
            target,
            PROMPT,
            source=adversary(plain.tokens, seed),
            width=width,
            n_predict=n_predict,
            stop=text.add,
            strict=True,
        )
        self.consume(generation, text, answer)
        assert text.text == expected
        assert generation.finish_reason is reason
        assert target.held == generation.tokens[: generation.n_past]
        assert generation.n_past == len(generation.tokens) or (
            recurrent and reason is FinishReason.STOP and generation.n_past == 0
        )

    @staticmethod
    def consume(generation: Generation, text: AnswerText, answer: list[int]) -> None:
        tally, tokens = Tally(), list[int]()
        for step in generation:
            tally.add(step)
            tokens += step.tokens
            del tokens[len(tokens) - step.n_taken_back :]
            text.take()
        text.finish(len(tokens))
        assert generation.tokens[3:] == tokens == answer
        assert tally.summary.n_generated == len(tokens)

    def test_a_stop_is_counted_and_observed_as_what_stays(self) -> None:
        """Settled 4 and drafts 5, 6, 7 are right; the stop leaves 4 and 5."""
        target = FakeTarget(rule=lambda tokens: (tokens[-1] + 1) % 16, recurrent=True)
        source = ScriptedSource(lambda tokens, n_max: [5, 6, 7][:n_max])
        generation = generate(target, PROMPT, source=source, stop=lambda tokens: 2)
        (step,) = generation
        assert step.tokens == (4, 5)
        assert (step.n_drafted, step.n_accepted, step.n_taken_back) == (3, 3, 0)
        assert source.observed == [([1, 2, 3], 0), ([4, 5], 3)]
        assert target.held == generation.tokens == [1, 2, 3, 4, 5]
        assert generation.finish_reason is FinishReason.STOP

    def test_a_stop_that_begins_in_an_earlier_step(self) -> None:
        """Tokens 4 and 5 came in steps of their own; the third step takes 5 back."""
        target = FakeTarget(rule=lambda tokens: (tokens[-1] + 1) % 16)
        seen: list[int] = []

        def stop(tokens: Sequence[int]) -> int | None:
            seen.extend(tokens)
            return 1 if len(seen) == 3 else None

        generation = generate(target, PROMPT, stop=stop)
        steps = list(generation)
        assert [step.tokens for step in steps] == [(4,), (5,), ()]
        assert [step.n_taken_back for step in steps] == [0, 0, 1]
        assert target.held == generation.tokens == [1, 2, 3, 4]
