"""Sampling: the settings do what they say, and speculation draws what plain sampling draws."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import define

from bmoe_core import (
    DecodeError,
    LlamaModel,
    LlamaTarget,
    Sampler,
    Sampling,
    UsageError,
    generate,
)
from bmoe_core.testing import FakeTarget, ScriptedSource
from bmoe_core.testing.models import N_VOCAB, f32_cache

Load = Callable[[str], LlamaModel]

PROMPT = list(b"one two three one two")

SETTINGS = [
    pytest.param({"temp": 0.7}, id="temperature"),
    pytest.param({"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, id="nothing cut off"),
    pytest.param({"temp": 1.0, "repeat_penalty": 1.3}, id="temperature and penalty"),
    pytest.param({"repeat_penalty": 1.8}, id="penalty alone"),
    pytest.param(
        {"temp": 1.0, "grammar": 'root ::= [a-z ]+ ("." [A-Z]+)*'}, id="temperature and grammar"
    ),
    pytest.param({"grammar": "root ::= [ -~]*"}, id="grammar alone"),
]


def knowing(answer: Sequence[int], seed: int) -> ScriptedSource:
    """Drafts what is coming, a part of it, noise, or nothing."""
    random_ = random.Random(seed)

    def script(tokens: np.ndarray, n_max: int) -> list[int]:
        coming = list(answer[len(tokens) :][:n_max])
        n_right = random_.randint(0, len(coming))
        noise = [random_.randrange(N_VOCAB) for _ in range(n_max)]
        return random_.choice([[], coming, (coming[:n_right] + noise)[:n_max], noise])

    return ScriptedSource(script)


def sampled(
    target: Any,
    model: LlamaModel,
    settings: dict[str, Any],
    seed: int,
    source: ScriptedSource | None = None,
) -> tuple[list[int], int]:
    """The tokens of a run, prompt included, and how many drafted tokens were accepted."""
    sampler = Sampler(model, Sampling(seed=seed, **settings), PROMPT)
    target.clear()
    generation = generate(
        target, PROMPT, source=source, n_predict=40, width=4, pick=sampler.pick, strict=True
    )
    n_accepted = sum(step.n_accepted for step in generation)
    sampler.close()
    return generation.tokens, n_accepted


def nudged_draws(
    plain: LlamaTarget, settings: dict[str, Any], seed: int, tokens: list[int]
) -> set[int]:
    """What may come for the last of ``tokens`` where its logits differ in their last bits."""
    model = plain._model
    plain.clear()
    chunks = [PROMPT, *([token] for token in tokens[len(PROMPT) : -1])]
    rows = [plain.decode(chunk, n_rows=1)[0].copy() for chunk in chunks]
    random_ = np.random.default_rng(0)
    found = set()
    for _ in range(200):
        sampler = Sampler(model, Sampling(seed=seed, **settings), PROMPT)
        assert [sampler.pick(row) for row in rows[:-1]] == tokens[len(PROMPT) : -1]
        nudge = random_.uniform(-1, 1, len(rows[-1])) * NUDGE
        found.add(sampler.pick((rows[-1] + nudge).astype(np.float32)))
    return found


NUDGE = 5e-5
"""How far a logit of a batch may be from that of a single decode here, in f32."""


class TestSpeculation:
    """Equal seeds draw equal tokens, whatever is drafted."""

    @pytest.mark.parametrize("settings", SETTINGS)
    @pytest.mark.parametrize("kind", ["dense", "moe", "sliding-window", "hybrid-moe"])
    def test_on_llama_cpp(self, load: Load, kind: str, settings: dict[str, Any]) -> None:
        """Eight seeds a model and setting: equal tokens, some drafts among them.

        The first difference may come where a draw falls between two tokens so closely that the
        last bits of the logits decide.
        """
        model = load(kind)
        total = n_equal = 0
        with (
            LlamaTarget(model, n_ctx=128, n_threads=1, prepare=f32_cache) as plain,
            LlamaTarget(model, n_ctx=128, n_threads=1, prepare=f32_cache, max_draft=4) as drafting,
        ):
            for seed in range(8):
                expected, _ = sampled(plain, model, settings, seed)
                source = knowing(expected, seed)
                actual, n_accepted = sampled(drafting, model, settings, seed, source)
                total += n_accepted
                n_equal += actual == expected
                if actual != expected:
                    pairs = zip(actual, expected, strict=False)
                    same = next(i for i, (a, b) in enumerate(pairs) if a != b)
                    draws = nudged_draws(plain, settings, seed, expected[: same + 1])
                    assert actual[same] in draws, seed
        assert total > 20
        assert n_equal >= 6

    @pytest.mark.parametrize("settings", SETTINGS)
    def test_on_a_fake(self, load: Load, settings: dict[str, Any]) -> None:
        """Fifty seeds each, on rows that are the same to the bit."""
        model = load("dense")
        total = 0
        for seed in range(50):
            expected, _ = sampled(FakeTarget(n_vocab=N_VOCAB), model, settings, seed)
            source = knowing(expected, seed)
            actual, n_accepted = sampled(FakeTarget(n_vocab=N_VOCAB), model, settings, seed, source)
            assert actual == expected, seed
            total += n_accepted
        assert total > 100

    def test_a_source_is_asked_as_under_greedy_choice(self, load: Load) -> None:
        """The history and the room, each step, whatever the temperature."""
        source = ScriptedSource()
        sampled(FakeTarget(n_vocab=N_VOCAB), load("dense"), {"temp": 1.0}, 1, source)
        assert source.asked[:3] == [(22, 4), (23, 4), (24, 4)]


@define(eq=False)
class Loaded(FakeTarget):
    """A target whose every row is the same."""

    row: Any = None

    def decode(self, tokens: Sequence[int], n_rows: int) -> np.ndarray:
        super().decode(tokens, n_rows)
        return np.tile(self.row, (n_rows, 1)).astype(np.float32)


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> float:
    n = sum(counts)
    return sum(
        (count - n * p) ** 2 / (n * p) for count, p in zip(counts, probabilities, strict=True)
    )


# The distribution with four degrees of freedom exceeds this once in 10,000 times.
CHI_SQUARE_4 = 23.51


class TestDistribution:
    ROW = np.full(N_VOCAB, -np.inf, np.float32)
    ROW[:5] = np.log([0.4, 0.3, 0.15, 0.1, 0.05])

    @pytest.mark.parametrize(
        ("temp", "expected"),
        [
            (1.0, [0.4, 0.3, 0.15, 0.1, 0.05]),
            # Squares: 0.16, 0.09, 0.0225, 0.01, 0.0025, of 0.285 together.
            (0.5, [0.5614, 0.31579, 0.07895, 0.03509, 0.00877]),
        ],
    )
    def test_draws_have_the_model_s_probabilities(
        self, load: Load, temp: float, expected: list[float]
    ) -> None:
        """Twenty thousand draws, by the chi-square test."""
        settings = Sampling(temp=temp, top_k=0, top_p=1.0, min_p=0.0, seed=7)
        sampler = Sampler(load("dense"), settings)
        drawn = [sampler.pick(self.ROW) for _ in range(20_000)]
        counts = [drawn.count(token) for token in range(5)]
        assert sum(counts) == 20_000
        assert chi_square(counts, expected) < CHI_SQUARE_4

    def test_so_have_speculated_ones(self, load: Load) -> None:
        """A source that always drafts the same two tokens does not make them likelier."""
        target = Loaded(n_vocab=N_VOCAB, n_ctx=6000, row=self.ROW)
        settings = Sampling(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
        source = ScriptedSource(lambda tokens, n_max: [4, 1][:n_max])
        generation = generate(
            target,
            PROMPT,
            source=source,
            n_predict=5000,
            pick=Sampler(load("dense"), settings).pick,
        )
        n_accepted = sum(step.n_accepted for step in generation)
        counts = [generation.tokens[len(PROMPT) :].count(token) for token in range(5)]
        assert n_accepted > 100
        assert chi_square(counts, [0.4, 0.3, 0.15, 0.1, 0.05]) < CHI_SQUARE_4


def row_of(**logits: float) -> np.ndarray:
    """Logits of the letters given, far below them everything else."""
    row = np.full(N_VOCAB, -50.0, np.float32)
    for letter, logit in logits.items():
        row[ord(letter)] = logit
    return row


def drawn(model: LlamaModel, settings: Sampling, row: np.ndarray, prompt: bytes = b"") -> set[str]:
    sampler = Sampler(model, settings, list(prompt))
    return {chr(Sampler(model, s, list(prompt)).pick(row)) for s in seeds(settings)} | {
        chr(sampler.pick(row))
    }


def seeds(settings: Sampling) -> list[Sampling]:
    import attrs

    return [attrs.evolve(settings, seed=seed) for seed in range(60)]


class TestSettings:
    def test_top_k(self, load: Load) -> None:
        """Two candidates leave the two likeliest."""
        row = row_of(a=2.0, b=1.9, c=1.8)
        assert drawn(load("dense"), Sampling(temp=1.0, top_k=2, min_p=0), row) == {"a", "b"}

    def test_top_p(self, load: Load) -> None:
        """Probabilities 0.5, 0.3, 0.2: 0.6 is reached by the second."""
        row = row_of(a=np.log(0.5), b=np.log(0.3), c=np.log(0.2))
        assert drawn(load("dense"), Sampling(temp=1.0, top_p=0.6, min_p=0), row) == {"a", "b"}

    def test_min_p(self, load: Load) -> None:
        """Probabilities 0.5, 0.3, 0.2: half of the likeliest is 0.25."""
        row = row_of(a=np.log(0.5), b=np.log(0.3), c=np.log(0.2))
        settings = Sampling(temp=1.0, top_p=1.0, min_p=0.5)
        assert drawn(load("dense"), settings, row) == {"a", "b"}

    def test_the_penalty_sees_the_prompt(self, load: Load) -> None:
        """2.0 / 1.5 is below 1.9, and only where the token was among the last 64."""
        model, row = load("dense"), row_of(a=2.0, b=1.9)
        settings = Sampling(repeat_penalty=1.5)
        assert Sampler(model, settings, list(b"xyz")).pick(row) == ord("a")
        assert Sampler(model, settings, list(b"a" + 63 * b"x")).pick(row) == ord("b")
        assert Sampler(model, settings, list(b"a" + 64 * b"x")).pick(row) == ord("a")

    def test_the_penalty_sees_what_was_picked(self, load: Load) -> None:
        """a, then b since a is at 1.33 then, then a again since b is at 1.27."""
        sampler = Sampler(load("dense"), Sampling(repeat_penalty=1.5))
        row = row_of(a=2.0, b=1.9)
        assert [chr(sampler.pick(row)) for _ in range(3)] == ["a", "b", "a"]

    def test_rows_are_left_as_they_are(self, load: Load) -> None:
        """The target's own memory is only read."""
        row = row_of(a=2.0, b=1.9)
        before = row.copy()
        Sampler(load("dense"), Sampling(temp=1.0, repeat_penalty=2.0), [97]).pick(row)
        assert (row == before).all()

    def test_seeds(self, load: Load) -> None:
        """Another seed draws otherwise, and a missing one is settled and told."""
        model = load("dense")
        target = FakeTarget(n_vocab=N_VOCAB)
        runs = [tuple(sampled(target, model, {"temp": 1.0}, seed)[0]) for seed in (1, 2, 1)]
        assert runs[0] == runs[2] != runs[1]
        settled = Sampling(temp=1.0).seeded()
        assert settled.seed is not None
        assert Sampling().seeded().seed is None

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"temp": -0.1}, "temp takes 0.0 to 1000000.0, not -0.1"),
            ({"temp": float("nan")}, "temp takes 0.0 to"),
            ({"top_k": -1}, "top_k takes 0 to 2147483647, not -1"),
            ({"top_p": 1.1}, "top_p takes 0.0 to 1.0, not 1.1"),
            ({"min_p": -1}, "min_p takes 0.0 to 1.0, not -1"),
            ({"repeat_penalty": 0}, "repeat_penalty takes a number above 0, not 0"),
            ({"seed": 2**32}, "seed takes 0 to 4294967294, not 4294967296"),
        ],
    )
    def test_values_out_of_range(self, settings: dict[str, Any], message: str) -> None:
        """Refused with what may be given."""
        with pytest.raises(UsageError, match=re.escape(message)):
            Sampling(**settings)


class TestGrammar:
    def test_an_answer_matches_it(self, load: Load) -> None:
        """Under temperature and drafts, for twenty seeds."""
        model = load("dense")
        settings = {"temp": 2.0, "top_k": 0, "grammar": 'root ::= "x" [ab]* "y"'}
        with LlamaTarget(model, n_ctx=128, n_threads=1, max_draft=4) as target:
            for seed in range(20):
                tokens, _ = sampled(target, model, settings, seed, knowing([], seed))
                text = bytes(tokens[len(PROMPT) :]).decode()
                assert re.fullmatch("x[ab]*y", text) or (len(text) == 40 and text[0] == "x")

    @pytest.mark.parametrize(
        ("grammar", "message"),
        [
            ("", "the grammar holds no rules"),
            ('foo ::= "a"', "does not contain a 'root' symbol"),
            ('root := "a"', "expecting ::= at"),
            ("root ::= bar", "Undefined rule identifier 'bar'"),
            ('root ::= root "a" | "b"', "left recursion"),
        ],
    )
    def test_one_that_is_none(
        self, load: Load, grammar: str, message: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Refused with llama.cpp's reason, and nothing is printed beside."""
        with pytest.raises(UsageError, match=re.escape(message)):
            Sampler(load("dense"), Sampling(grammar=grammar))
        assert capfd.readouterr() == ("", "")

    def test_no_token_fits(self, load: Load) -> None:
        """Where the model gives the only allowed token no chance, the run ends with a sentence."""
        sampler = Sampler(load("dense"), Sampling(grammar='root ::= "a"'))
        row = np.zeros(N_VOCAB, np.float32)
        row[ord("a")] = -np.inf
        with pytest.raises(DecodeError, match="the grammar allows no token"):
            sampler.pick(row)

    def test_closed_twice(self, load: Load) -> None:
        """Nothing happens the second time."""
        sampler = Sampler(load("dense"), Sampling(grammar='root ::= "a"'))
        sampler.close()
        sampler.close()
