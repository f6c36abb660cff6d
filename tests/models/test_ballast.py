"""Ballast makes a model heavier and changes nothing that it computes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as lib
import llama_cpp.llama_cpp_ext as ext
import numpy as np
import pytest

import bmoe_core.models
from bmoe_core.models.ballast import BallastError, add_ballast, main
from bmoe_core.target import log

DEMO = Path(bmoe_core.models.__file__).parent / "demo.gguf"
TEXT = b"def area(width, height):\n    return width * height\n\ndef perimeter(width, height):\n"
N_CTX = 128


class _Decoder:
    """Target and head context over one file; rows come back as copies."""

    def __init__(self, path: Path) -> None:
        # llama-cpp-python's own logger cannot print a vocabulary that has parts of characters.
        log.capture()
        params = lib.llama_model_default_params()
        params.load_mtp = True
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"cannot load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)
        self.n_embd = lib.llama_model_n_embd(self.model)
        self.target = self._context(lib.LLAMA_CONTEXT_TYPE_DEFAULT)
        self.head = self._context(lib.LLAMA_CONTEXT_TYPE_MTP)
        ext.llama_set_embeddings_nextn(self.target, True, False)
        ext.llama_set_embeddings_nextn(self.head, True, True)

    def _context(self, kind: int) -> lib.llama_context_p:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
        params.n_threads = params.n_threads_batch = 1
        params.ctx_type = kind
        return lib.llama_init_from_model(self.model, params)

    def close(self) -> None:
        lib.llama_free(self.head)
        lib.llama_free(self.target)
        lib.llama_model_free(self.model)

    def tokenize(self, text: bytes) -> list[int]:
        buffer = (lib.llama_token * N_CTX)()
        n = lib.llama_tokenize(self.vocab, text, len(text), buffer, N_CTX, False, False)
        assert n > 0
        return list(buffer[:n])

    def decode(
        self,
        context: lib.llama_context_p,
        tokens: list[int],
        start: int,
        hidden: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits (T, n_vocab) and nextn rows (T, n_embd) of these tokens."""
        n = len(tokens)
        ids = (lib.llama_token * n)(*tokens)
        batch = lib.llama_batch_init(n, 0 if hidden is None else self.n_embd, 1)
        batch.n_tokens = n
        if hidden is None:
            ctypes.memmove(batch.token, ids, ctypes.sizeof(ids))
        else:
            batch.token = ctypes.cast(ids, ctypes.POINTER(lib.llama_token))
            ctypes.memmove(batch.embd, np.ascontiguousarray(hidden).ctypes.data, hidden.nbytes)
        for i in range(n):
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = start + i, 1, 1
            batch.seq_id[i][0] = 0
        status = lib.llama_decode(context, batch)
        if hidden is not None:
            batch.token = ctypes.POINTER(lib.llama_token)()
        lib.llama_batch_free(batch)
        assert status == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits(context), (n, self.n_vocab))
        rows = np.ctypeslib.as_array(ext.llama_get_embeddings_nextn(context), (n, self.n_embd))
        return logits.copy(), rows.copy()


def _everything(path: Path) -> dict[str, np.ndarray]:
    """Trunk and head logits of a prompt, then 24 greedy tokens and which the head foresaw."""
    decoder = _Decoder(path)
    prompt = decoder.tokenize(TEXT)
    trunk, hidden = decoder.decode(decoder.target, prompt, 0)
    shifted = np.vstack([np.zeros_like(hidden[:1]), hidden[:-1]])
    head, _ = decoder.decode(decoder.head, prompt, 0, shifted)

    greedy, foreseen = [], []
    settled, last = int(trunk[-1].argmax()), hidden[-1:]
    for position in range(len(prompt), len(prompt) + 24):
        drafted, _ = decoder.decode(decoder.head, [settled], position, last)
        logits, last = decoder.decode(decoder.target, [settled], position)
        greedy.append(settled)
        settled = int(logits[-1].argmax())
        foreseen.append(int(drafted[-1].argmax()) == settled)
    decoder.close()
    return {
        "trunk": trunk,
        "head": head,
        "greedy": np.array(greedy),
        "foreseen": np.array(foreseen),
    }


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    return _everything(DEMO)


@pytest.mark.parametrize("n_layers", [1, 5])
def test_ballast_changes_nothing(
    tmp_path: Path, plain: dict[str, np.ndarray], n_layers: int
) -> None:
    """Logits of trunk and head, greedy tokens and accepted drafts stay as they were."""
    heavy = tmp_path / "heavy.gguf"
    add_ballast(DEMO, heavy, n_layers)
    found = _everything(heavy)
    np.testing.assert_allclose(found["trunk"], plain["trunk"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["head"], plain["head"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found["greedy"], plain["greedy"])
    np.testing.assert_array_equal(found["foreseen"], plain["foreseen"])
    assert heavy.stat().st_size > DEMO.stat().st_size


def test_layers_keep_the_pattern_and_the_head_stays_last(tmp_path: Path) -> None:
    """Every layer is of the kind its index asks for; the nextn block follows the last of them."""
    heavy = tmp_path / "heavy.gguf"
    add_ballast(DEMO, heavy, 5)
    reader = gguf.GGUFReader(str(heavy))

    def value(key: str) -> int:
        return int(reader.get_field(f"qwen35moe.{key}").contents())

    n_trunk = value("block_count") - value("nextn_predict_layers")
    names = {tensor.name for tensor in reader.tensors}
    recurrent = [f"blk.{i}.ssm_out.weight" in names for i in range(n_trunk)]
    interval = value("full_attention_interval")
    assert recurrent == [(i + 1) % interval != 0 for i in range(n_trunk)]
    assert f"blk.{n_trunk}.nextn.eh_proj.weight" in names


def test_a_refusal_is_one_line_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adding no layer is refused, in Python and on the command line."""
    out = tmp_path / "heavy.gguf"
    with pytest.raises(BallastError, match="at least 1"):
        add_ballast(DEMO, out, 0)
    with pytest.raises(SystemExit) as stop:
        main([str(DEMO), str(out), "--layers", "0"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
