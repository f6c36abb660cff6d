"""Torch against llama.cpp: `python -m tools.demo_model.parity [CHECKPOINT]`.

Exports in f32 (random weights when no checkpoint is given), runs one text through both, and
compares trunk logits, head logits and chained head logits. Exits 1 where they differ.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from . import tokenizer as bpe
from .checkpoint import load_weights
from .config import ModelConfig
from .export import write
from .model import DemoModel
from .runner import Runner

TOLERANCE = 0.02
TEXT = '''
class Cache:
    """Keep the last values, and forget the oldest; don't look at the 1234 others."""

    def __init__(self, size=16):
        self.size = size
        self.items = {}

    def get(self, key, default=None):
        return self.items.get(key, default)
'''


def random_model(config: ModelConfig) -> DemoModel:
    """Weights large enough that every part of the graph matters to the logits."""
    torch.manual_seed(0)
    model = DemoModel(config)
    with torch.no_grad():
        for param in model.parameters():
            if param.ndim >= 2:
                param.normal_(std=param.shape[-1] ** -0.5)
            else:
                param.add_(torch.randn_like(param) * 0.1)
    return model


@torch.no_grad()
def torch_logits(model: DemoModel, ids: np.ndarray) -> tuple[np.ndarray, ...]:
    """Trunk, head and chained-head logits at every position, each (T, n_vocab)."""
    tokens = torch.from_numpy(ids)[None]
    hidden, _ = model.trunk(tokens)
    embedded = model.embed(tokens)
    rows, _ = model.mtp(embedded, hidden)
    second = model.mtp.chain(embedded, hidden, rows)
    return tuple(model.logits(x)[0].numpy() for x in (hidden, rows, second))


def differences(model: DemoModel, runner: Runner, ids: np.ndarray) -> dict[str, float]:
    """Largest absolute difference of each kind of logits."""
    trunk, head, second = torch_logits(model, ids)
    their_trunk, hidden = runner.trunk(ids)
    their_head, _ = runner.head(ids, hidden)
    places = (1, 2, len(ids) // 2, len(ids) - 1)
    chained = [np.abs(runner.chained(ids, hidden, p) - second[p]).max() for p in places]
    return {
        "trunk": float(np.abs(trunk - their_trunk).max()),
        "head": float(np.abs(head - their_head).max()),
        "chained head": float(max(chained)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--tokenizer", type=Path, default=Path("run/corpus/tokenizer.json"))
    args = parser.parse_args()
    model = random_model(ModelConfig())
    if args.checkpoint:
        load_weights(model, args.checkpoint)
    ids = np.array(bpe.load(args.tokenizer).encode(TEXT).ids)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parity.gguf"
        write(model, args.tokenizer, path, half=False)
        with Runner(path) as runner:
            found = differences(model, runner, ids)
            same_ids = np.array_equal(runner.tokenize(TEXT), ids)
    for name, value in found.items():
        print(f"{name}: largest difference {value:.2e}")
    print(f"token ids equal: {same_ids}")
    if not same_ids or max(found.values()) > TOLERANCE:
        raise SystemExit("torch and llama.cpp disagree")


if __name__ == "__main__":
    main()
