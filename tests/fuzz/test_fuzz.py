"""Whatever is given, nothing ends in a traceback and no source changes an answer."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bmoe_core import Draft, Generator, LlamaModel, LlamaTarget, Tally, generate, hookimpl
from bmoe_core.cli import main
from bmoe_core.sources import OpenSource

OPTIONS = [
    *("-m", "-p", "-f", "-n", "-c", "-t", "--draft", "--draft-source", "--ngram", "--mtp"),
    *("--strict", "--json", "--csv", "--routing", "--cache-mb", "--quiet", "--chat", "--system"),
    *("--stop", "--temp", "--top-k", "--top-p", "--min-p", "--seed", "--repeat-penalty"),
    *("--grammar-file", "--ngram-min-match", "--mtp-p-min", "sources", "--version"),
]
VALUES = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "3", "-1", "8", "9", "64", "1e9", "nan", "none", "ngram", "mtp"]
    ),
    st.sampled_from(["auto", "-", "", "x" * 300, "MODEL", "/dev/null", "/dev/full", "run", "."]),
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def run(arguments: list[str]) -> tuple[int | str | None, str]:
    """The exit status and what was said."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return main(arguments), err.getvalue()
        except SystemExit as exit_:
            return exit_.code, err.getvalue()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    given_=st.lists(st.tuples(st.sampled_from(OPTIONS), st.none() | VALUES), max_size=6),
    prompt=st.text(max_size=12),
)
def test_any_command_line(
    model_paths: dict[str, Path],
    folder: Path,
    monkeypatch_module: pytest.MonkeyPatch,
    given_: list[tuple[str, str | None]],
    prompt: str,
) -> None:
    """Three hundred: an exit status of the reference, and where it is 2 a sentence."""
    monkeypatch_module.chdir(folder)
    model = str(model_paths["dense"])
    words = ["-m", model, "-t", "1", "-c", "64", "-n", "4", f"--prompt={prompt}"]
    for option, value in given_:
        words.append(option)
        if value is not None:
            words.append(model if value == "MODEL" else value)
    status, said = run(words)
    assert status in (0, 1, 2), (words, said)
    if status == 2:
        assert said.splitlines()[-1] != ""
        assert "bmoe: " in said


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_any_bytes_of_a_prompt_file(
    model_paths: dict[str, Path], folder: Path, data: bytes
) -> None:
    """Two hundred: what is no UTF-8 or no text is refused, everything else is answered."""
    path = folder / "prompt"
    path.write_bytes(data)
    status, said = run(
        ["-m", str(model_paths["dense"]), "-t", "1", "-c", "256", "-n", "3", "-f", str(path)]
    )
    try:
        refused = not data.decode()
    except UnicodeDecodeError:
        refused = True
    assert status == (2 if refused else 0), said


WILD = st.one_of(
    st.none(),
    st.integers(-5, 300),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.floats(),
    st.lists(st.integers(-3, 300), max_size=12),
    st.lists(st.integers(0, 256), min_size=1, max_size=3),
    st.lists(st.one_of(st.none(), st.floats(), st.booleans()), max_size=3),
    st.lists(st.integers(0, 256), max_size=4).map(lambda tokens: np.array(tokens, np.int64)),
    st.lists(st.floats(), max_size=4).map(np.array),
    st.builds(Draft, st.lists(st.integers(0, 256), max_size=3), st.none() | st.integers()),
    st.builds(Draft, st.lists(st.integers(0, 256), max_size=3), st.lists(st.integers())),
    st.sampled_from([RuntimeError("no"), SystemExit(3), MemoryError(), ValueError("\ud800")]),
)


@attrs.define(eq=False)
class Wild:
    """Does in every hook what it is told."""

    answers: list[Any]

    def _next(self) -> Any:
        answer = self.answers[len(self.answers) // 2] if self.answers else None
        if self.answers:
            self.answers.append(self.answers.pop(0))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @hookimpl
    def begin(self, prompt: Any, n_past: int) -> None:
        self._next()

    @hookimpl
    def observe(self, tokens: Any, n_past: int) -> None:
        with contextlib.suppress(ValueError):
            tokens[:] = 7
        self._next()

    @hookimpl
    def draft(self, tokens: Any, n_max: int) -> Any:
        return self._next()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(answers=st.lists(WILD, max_size=6), prompt=st.binary(min_size=1, max_size=20))
def test_any_behaviour_of_a_source(
    load: Callable[[str], LlamaModel], answers: list[Any], prompt: bytes
) -> None:
    """Three hundred: the answer is the plain one, and the memory holds it."""
    model = load("dense")
    tokens = list(prompt)
    with LlamaTarget(model, n_ctx=64, n_threads=1, max_draft=4) as target:
        plain = generate(target, tokens, n_predict=20)
        list(plain)
        target.clear()
        tally = Tally()
        source = OpenSource("wild", Wild(answers))
        wild = generate(target, tokens, source=source, n_predict=20, width=4)
        for step in wild:
            tally.add(step)
        assert wild.tokens == plain.tokens
        assert target.n_past == len(wild.tokens)
        assert tally.summary.n_generated == wild.n_generated


def test_damaged_gguf_headers(model_paths: dict[str, Path], tmp_path: Path) -> None:
    """Sixty files with bytes changed in the header: each loads, or is refused in a sentence.

    In a process of its own each, since a damaged file may take llama.cpp with it.
    """
    healthy = model_paths["dense"].read_bytes()
    random_ = random.Random(5)
    statuses = []
    for i in range(60):
        data = bytearray(healthy)
        for _ in range(random_.randint(1, 4)):
            at = random_.randrange(4, 1200)
            data[at] = random_.choice([0, 1, 255, random_.randrange(256)])
        if i % 6 == 0:
            struct.pack_into("<Q", data, random_.choice([8, 16]), random_.randrange(2**63))
        path = tmp_path / f"{i}.gguf"
        path.write_bytes(data)
        statuses.append(status_on(path))
        path.unlink()
    assert set(statuses) == {0, 2}


def status_on(path: Path) -> int:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bmoe_core", "-m", str(path), "-t", "1"),
            *("-n", "2", "-c", "32", "-p", "x"),
        ],
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
    return done.returncode


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    prompts=st.lists(st.text(max_size=20), min_size=1, max_size=4),
    stops=st.lists(st.text(min_size=1, max_size=2), max_size=2),
    n_pieces=st.integers(0, 6),
    kind=st.sampled_from(["dense", "sliding-window", "hybrid-moe"]),
)
def test_any_order_of_answers(
    load: Callable[[str], LlamaModel],
    prompts: list[str],
    stops: list[str],
    n_pieces: int,
    kind: str,
) -> None:
    """A hundred sessions with answers left half-way: the last one is that of a new context."""
    model = load(kind)
    prompts = [prompt or "x" for prompt in prompts if prompt.isprintable()] or ["x"]
    with Generator(model, draft_source="ngram", n_ctx=128, n_threads=1) as used:
        for prompt in prompts:
            answer = used.generate(prompt, n_predict=12, stop=stops)
            for _ in range(n_pieces):
                next(answer, None)
        list(answer)
        again = used.generate(prompts[-1], n_predict=12, stop=stops)
        list(again)
    with Generator(model, n_ctx=128, n_threads=1) as new:
        expected = new.generate(prompts[-1], n_predict=12, stop=stops)
        list(expected)
    assert answer.tokens == again.tokens == expected.tokens
    assert answer.text == expected.text
