"""The session on a terminal, and without one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bmoe_core

Start = Callable[..., Any]
SMOLLM2 = Path(bmoe_core.__file__).parent.parent / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


class TestTerminal:
    def test_a_session(self, terminal: Start) -> None:
        """Ask, go on, look at the figures, change the source, forget, leave."""
        chat = terminal("-n", "12", "--ngram", "--ngram-min-match", "1")
        chat.expect("Ask something, or /help. Ctrl-D leaves.")
        chat.expect("> ")
        chat.send("/stats\n")
        chat.expect("nothing has been answered yet")
        chat.send("Hello there\n")
        chat.expect("Hello there\r\n")
        chat.expect("> ")
        chat.send("/stats\n")
        chat.expect("ngram: ")
        chat.expect("chat: 12 tokens in ")
        chat.send("/source\n")
        chat.expect("drafting with ngram; /source NAME takes one of none, ")
        chat.send("/source none\n")
        chat.expect("decoding plainly")
        chat.send("/source ngarm\n")
        chat.expect("bmoe: there is no draft source 'ngarm'. Did you mean ngram?")
        chat.send("/source mtp\n")
        chat.expect("this model has no multi-token-prediction head")
        chat.send("Again\n")
        chat.expect("Again\r\n")
        chat.expect("> ")
        chat.send("/stats\n")
        chat.expect("none: 12 tokens in 12 plain decodes")
        chat.expect("chat: 24 tokens in ")
        chat.send("/source\n")
        chat.expect("decoding plainly; /source NAME takes one of none, ")
        chat.send("/source ngram\n")
        chat.expect("drafting with ngram")
        chat.send("/reset\n")
        chat.expect("the conversation is forgotten")
        chat.send("/what\n")
        chat.expect("there is no /what: /help lists what there is")
        chat.send("/help\n")
        chat.expect("Ctrl-C ends an answer")
        chat.send("/exit\n")
        assert chat.close() == 0

    def test_an_answer_that_was_cut_off_says_so(self, terminal: Start) -> None:
        """By the number of tokens, or by the end of the context; each with the remedy."""
        chat = terminal("-n", "12", "-c", "256")
        chat.expect("> ")
        chat.send("Hi\n")
        chat.expect("(cut off after 12 tokens: -n makes answers longer)\r\n> ")
        assert chat.leave() == 0
        chat = terminal("-n", "300", "-c", "64")
        chat.expect("> ")
        chat.send("Hi\n")
        chat.expect("(cut off where the context is full: /reset, or a larger -c)\r\n> ")
        assert chat.leave() == 0

    def test_a_source_comes_back_with_the_options_it_was_given(self, terminal: Start) -> None:
        """By default it drafts in this chat; no match is as long as was asked for."""
        chat = terminal("-n", "12", "--ngram", "--ngram-min-match=60", "--ngram-max-match=64")
        chat.expect("> ")
        chat.send("/source none\n")
        chat.expect("decoding plainly")
        chat.send("/source ngram\n")
        chat.expect("drafting with ngram")
        chat.send("Hello there\n")
        chat.expect("(cut off")
        chat.send("/stats\n")
        chat.expect("ngram: drafted on ")
        assert chat.expect(" of ") == "0"
        chat.expect("positions are in use\r\n> ")
        assert chat.leave() == 0

    def test_lines_can_be_edited_and_recalled(self, terminal: Start) -> None:
        """Ctrl-A goes to the beginning, and the up arrow brings the last line back."""
        chat = terminal("-n", "1")
        chat.expect("> ")
        chat.send("tats\x01/s\n")
        chat.expect("nothing has been answered yet")
        chat.expect("> ")
        chat.send("\x1b[A\n")
        chat.expect("nothing has been answered yet")
        chat.expect("> ")
        assert chat.leave() == 0

    def test_ctrl_c_ends_an_answer_and_not_the_chat(self, terminal: Start) -> None:
        """Nor does it at the prompt."""
        chat = terminal("-c", "200000", "-n", "150000")
        chat.expect("> ")
        chat.send("\x03")
        chat.expect("> ")
        chat.send("Talk\n")
        chat.expect("Talk\r\n")
        chat.read_until(lambda seen: len(seen) > 20)
        # The answer may hold what looks like the prompt, so the next line does not wait for that.
        chat.send("\x03")
        chat.send("/stats\n")
        chat.expect("positions are in use")
        chat.expect("> ")
        assert chat.leave() == 0

    def test_sigterm_ends_it(self, terminal: Start) -> None:
        """With the status of a terminated process, and no traceback."""
        chat = terminal()
        chat.expect("> ")
        chat.process.send_signal(signal.SIGTERM)
        rest = chat.expect("bmoe: interrupted")
        assert "Traceback" not in rest
        assert chat.close() == 143

    def test_a_narrow_terminal_and_a_home_that_is_none(self, terminal: Start) -> None:
        """Twenty columns do; nothing is written to the home folder."""
        chat = terminal("-n", "3", columns=20, home="/proc/nowhere")
        chat.expect("> ")
        chat.send("Hi\n")
        chat.expect("Hi\r\n")
        chat.expect("> ")
        assert chat.leave() == 0


@pytest.mark.real_model
def test_a_chat_with_a_real_model(start_chat: Start) -> None:
    """Two turns, figures, another source, an interrupt, a new start, a turn, Ctrl-D."""
    assert SMOLLM2.exists(), "run `make models` first"
    chat = start_chat("-m", str(SMOLLM2), "-t", "1", "--ngram", "-n", "40", "-c", "1024")

    def ask(text: str) -> str:
        chat.send(f"{text}\n")
        chat.expect(f"{text}\r\n")
        chat.expect(" tokens\r\x1b[K")
        answer: str = chat.expect("\r\n> ")
        return answer

    chat.expect("Ctrl-D leaves.\r\n> ")
    first = ask("What is the capital of France? Answer in a long sentence.")
    assert "Paris" in first
    ask("Say exactly that again.")
    chat.send("/stats\n")
    chat.expect("ngram: ")
    assert int(chat.expect("/")) > 0
    chat.expect("positions are in use\r\n> ")
    chat.send("/source none\n")
    chat.expect("decoding plainly\r\n> ")
    chat.send("Count from one to a hundred in words.\n")
    chat.expect(" tokens\r\x1b[K")
    chat.read_until(lambda seen: len(seen) > 8)
    chat.send("\x03")
    assert "Traceback" not in chat.expect("\r\n> ")
    chat.send("/stats\n")
    chat.expect("none: ")
    assert 0 < int(chat.expect(" tokens in ")) < 40
    chat.expect("positions are in use\r\n> ")
    chat.send("/reset\n")
    chat.expect("the conversation is forgotten\r\n> ")
    assert "Paris" not in ask("Name one animal.")
    assert chat.leave() == 0


class TestWithoutATerminal:
    def run(self, path: Path, lines: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "bmoe_core", "chat", "-m", str(path), "-t", "1"),
                *("-n", "5", *arguments),
            ],
            input=lines.encode(),
            capture_output=True,
            timeout=60,
        )

    def test_questions_come_line_by_line(self, chat_paths: dict[str, Path]) -> None:
        """Two questions, two answers on stdout, nothing beside them."""
        done = self.run(chat_paths["dense"], "Hi\nAnd?\n")
        assert done.returncode == 0
        assert done.stdout.endswith(b"\n")
        assert len(done.stdout) >= 4
        assert done.stderr == b""

    def test_a_model_that_cannot_chat(self, model_paths: dict[str, Path]) -> None:
        """Exit status 2 and the remedy."""
        done = self.run(model_paths["dense"], "Hi\n")
        assert done.returncode == 2
        assert b"has no chat template" in done.stderr
        assert b"Traceback" not in done.stderr

    @pytest.mark.parametrize("flag", ["-p", "-f", "--json", "--csv"])
    def test_options_of_a_single_answer(self, chat_paths: dict[str, Path], flag: str) -> None:
        """Refused, not ignored."""
        done = self.run(chat_paths["dense"], "Hi\n", flag, "x")
        assert done.returncode == 2
        assert f"bmoe chat takes no {flag}".encode() in done.stderr
