"""The automaton against plain counting."""

from __future__ import annotations

from collections import Counter

import pytest
from bmoe_suffix.automaton import MAX_COUNTED, ROOT, SuffixAutomaton
from bmoe_suffix.memory import Memory
from hypothesis import given, settings
from hypothesis import strategies as st

Texts = list[list[int]]


def automaton_of(texts: Texts) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.begin_text()
        for token in text:
            automaton.read(token)
    return automaton


def occurrences(texts: Texts, run: list[int]) -> int:
    """How often a run of tokens stands in the texts, overlaps included."""
    return sum(
        text[i : i + len(run)] == run for text in texts for i in range(len(text) - len(run) + 1)
    )


def longest_known(texts: Texts, token: int) -> list[int]:
    """The longest run at the end of the last text that was, with the token, read before."""
    history = [*texts[-1], token]
    for length in range(len(history), 0, -1):
        run = history[len(history) - length :]
        if occurrences(texts, run):
            return run
    return []


small_texts = st.lists(st.lists(st.integers(0, 3), max_size=24), min_size=1, max_size=3)


@settings(max_examples=600, deadline=None)
@given(texts=small_texts, token=st.integers(0, 4))
def test_the_longest_match_is_found(texts: Texts, token: int) -> None:
    """Over all texts, the end of the last one included."""
    _, length = automaton_of(texts).longest_match(token)
    assert length == len(longest_known(texts, token))


@settings(max_examples=600, deadline=None)
@given(texts=small_texts, token=st.integers(0, 3))
def test_the_likeliest_continuation_is_the_most_frequent(texts: Texts, token: int) -> None:
    """With its share of all that followed; nothing where nothing has followed."""
    automaton = automaton_of(texts)
    state, _ = automaton.longest_match(token)
    run = longest_known(texts, token)
    following = Counter(
        {after: n for after in range(4) if (n := occurrences(texts, [*run, after]))}
    )
    likeliest = automaton.likeliest(state)
    if not following:
        assert likeliest is None
        return
    assert likeliest is not None
    predicted, _, share = likeliest
    assert following[predicted] == max(following.values())
    assert share == pytest.approx(following[predicted] / sum(following.values()))


def test_of_equal_counts_the_latest_wins() -> None:
    """1 was followed by 2, then by 3."""
    automaton = automaton_of([[1, 2, 1, 3, 9]])
    state, length = automaton.longest_match(1)
    assert length == 1
    assert automaton.likeliest(state)[0] == 3  # type: ignore[index]


def test_texts_do_not_run_into_each_other() -> None:
    """What ends one text is not followed by what begins the next."""
    automaton = automaton_of([[1, 2], [3, 4], [5]])
    state, length = automaton.longest_match(2)
    assert length == 1
    assert automaton.likeliest(state) is None


def test_one_token_over_and_over_is_read_in_linear_time_and_space() -> None:
    """It has as many contexts as tokens, of which the longest ones alone are counted in."""
    n = 5000
    automaton = automaton_of([[7] * n])
    assert automaton.n_states == n + 1
    state, length = automaton.longest_match(7)
    assert length == n
    assert automaton.likeliest(state) is None
    shorter, length = automaton.shorter(state)
    assert length == n - 1
    assert automaton.likeliest(shorter)[:2] == (7, state)  # type: ignore[index]
    assert n > MAX_COUNTED


@given(text=st.lists(st.integers(0, 5), max_size=200))
def test_there_are_two_states_a_token_at_most(text: list[int]) -> None:
    """As the theory has it."""
    assert automaton_of([text]).n_states <= 2 * len(text) + 1


class TestMemory:
    def test_it_never_holds_more_than_its_capacity(self) -> None:
        """And, once it has read as much, never less than the latest half."""
        memory = Memory(capacity=100)
        sizes = []
        for i in range(1000):
            memory.read([i])
            sizes.append(memory.elder.n_tokens)
        assert max(sizes) < 100
        assert min(sizes[49:]) >= 49

    def test_old_tokens_are_forgotten_and_late_ones_remembered(self) -> None:
        """A token's only occurrence is gone after a capacity of others."""
        memory = Memory(capacity=100)
        memory.read([777])
        memory.read(range(100))
        assert memory.elder.longest_match(777) == (ROOT, 0)
        assert memory.elder.longest_match(99)[1] == 1

    def test_both_automata_begin_a_text(self) -> None:
        """The younger one has no run over the border either."""
        memory = Memory(capacity=20)
        memory.read(range(15))
        memory.begin_text()
        memory.read([90, 91, 92, 93, 94, 95])
        assert memory.elder.n_tokens < 15
        state, length = memory.elder.longest_match(14)
        assert length == 1
        assert memory.elder.likeliest(state) is None
