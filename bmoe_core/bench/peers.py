"""Other programs on the same model, prompt and token count: llama-cpp-python and llama-server.

llama-cpp-python's own loop is timed here, from its first token to its last. llama-server is asked
over loopback HTTP with the prompt's token ids, and gives its own timings.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, Protocol

from attrs import define, field
from llama_cpp import Llama, llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from bmoe_core.bench.plan import LLAMA_CPP_PYTHON, LLAMA_SERVER, Cell, Plan
from bmoe_core.bench.prompts import Prompt
from bmoe_core.bench.runs import Run
from bmoe_core.closing import Closing
from bmoe_core.errors import PeerError, summarize

START_S = 120.0
"""How long llama-server may take to load the model."""


class _Rig(Protocol):
    """What the peers have to know of bmoe's own runs."""

    n_ctx: int

    @property
    def n_threads(self) -> int: ...

    @property
    def path(self) -> Any: ...

    def tokens(self, prompt: Prompt) -> list[int]: ...


@define(eq=False)
class Peers(Closing):
    """Runs the cells of other programs; each is started at its first run and kept.

    Attributes:
        plan: the bench's.
        rig: bmoe's own side.
        unavailable: why peers were left out, by their name.
    """

    plan: Plan
    rig: _Rig
    unavailable: dict[str, str] = field(factory=dict, init=False)
    _started: dict[Cell, Any] = field(factory=dict, init=False)

    def pids(self) -> tuple[int, ...]:
        """The processes of the servers that run now."""
        return tuple(peer.pid for peer in self._started.values() if isinstance(peer, _Server))

    def can_run(self, cell: Cell) -> bool:
        """Whether the peer starts; :attr:`unavailable` says why not."""
        if cell in self._started:
            return True
        if cell.name in self.unavailable:
            return False
        try:
            self._started[cell] = self._start(cell)
        except PeerError as error:
            self.unavailable[cell.name] = str(error)
            return False
        return True

    def _start(self, cell: Cell) -> Any:
        if cell.source == LLAMA_CPP_PYTHON:
            return _Python(self.plan, self.rig, cell)
        assert cell.source == LLAMA_SERVER
        return _Server(self.plan, self.rig, cell)

    def run(self, cell: Cell, prompt: Prompt) -> Run:
        """One timed run.

        Raises:
            PeerError: the peer failed at it, and is left out from then on.
        """
        try:
            run: Run = self._started[cell].run(prompt)
        except Exception as error:
            self.unavailable[cell.name] = f"it failed on {prompt.name}: {summarize(error)}"
            self._started.pop(cell).close()
            raise PeerError(self.unavailable[cell.name]) from error
        return run

    def close(self) -> None:
        """End them, also where an interrupt comes while one of them ends."""
        with contextlib.ExitStack() as stack:
            for peer in self._started.values():
                stack.callback(peer.close)
            self._started.clear()


class _Python:
    """llama-cpp-python's ``Llama``, with its prompt lookup where the cell says so."""

    def __init__(self, plan: Plan, rig: _Rig, cell: Cell) -> None:
        if b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info():
            raise PeerError("its Llama may crash with a llama.cpp that was built with AMX kernels")
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=cell.draft) if cell.draft else None
        self._plan, self._rig, self._cell = plan, rig, cell
        self._llama = Llama(
            str(rig.path),
            n_ctx=rig.n_ctx,
            n_threads=rig.n_threads,
            n_threads_batch=rig.n_threads,
            draft_model=lookup,
            verbose=False,
        )

    def run(self, prompt: Prompt) -> Run:
        """Tokens after the first, over the seconds from the first to the last."""
        self._llama.reset()  # type: ignore[no-untyped-call]
        tokens: list[int] = []
        first = last = 0.0
        for token in self._llama.generate(self._rig.tokens(prompt), temp=0.0, repeat_penalty=1.0):
            last = time.perf_counter()
            first = first or last
            ends = llama_cpp.llama_vocab_is_eog(self._llama._model.vocab, token)
            if ends or len(tokens) == self._plan.n_predict:
                break
            tokens.append(token)
        n = max(len(tokens) - 1, 0)
        return Run(
            prompt=prompt.name, cell=self._cell.name, round=0, n_generated=n, wall_s=last - first
        )

    def close(self) -> None:
        """Free the model."""
        self._llama.close()


class _Server:
    """A llama-server process, and the requests to it."""

    def __init__(self, plan: Plan, rig: _Rig, cell: Cell) -> None:
        self._plan, self._rig, self._cell = plan, rig, cell
        self._port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        spec = dict(cell.options).get("spec")
        speculate = [] if spec is None else ["--spec-type", str(spec)]
        if spec == "draft-mtp":
            speculate += ["--spec-draft-n-max", str(cell.draft)]
        self._process = subprocess.Popen(
            [
                *(str(plan.llama_server), "-m", str(rig.path), "-c", str(rig.n_ctx)),
                *("-t", str(rig.n_threads), "-tb", str(rig.n_threads), "-np", "1"),
                *("--host", "127.0.0.1", "--port", str(self._port), "-fa", "off", *speculate),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the bench, which ends the servers itself.
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            # An interrupt here comes before anybody else knows of the process.
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise PeerError(f"llama-server ended at once: {self._last_words()}")
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(self._url("health"), timeout=1),
            ):
                return
            time.sleep(0.1)
        raise PeerError(f"llama-server was not ready after {START_S:.0f} s")

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}/{path}"

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if " E " in line or "error" in line.lower()]
        chosen: Sequence[str] = errors or lines or ["it said nothing"]
        return chosen[-1].strip()[:200]

    def run(self, prompt: Prompt) -> Run:
        """The server's own count and seconds of predicting."""
        request = urllib.request.Request(
            self._url("completion"),
            json.dumps(
                {
                    "prompt": self._rig.tokens(prompt),
                    "n_predict": self._plan.n_predict,
                    "temperature": 0.0,
                    "cache_prompt": False,
                    "repeat_penalty": 1.0,
                }
            ).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request) as answer:
                timings = json.load(answer)["timings"]
        except (OSError, ValueError, KeyError) as error:
            raise PeerError(f"llama-server did not answer: {error}") from error
        return Run(
            prompt=prompt.name,
            cell=self._cell.name,
            round=0,
            n_generated=timings["predicted_n"],
            wall_s=timings["predicted_ms"] / 1e3,
            n_drafted=timings.get("draft_n"),
            n_accepted=timings.get("draft_n_accepted"),
        )

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
