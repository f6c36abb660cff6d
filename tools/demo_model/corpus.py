"""Build the corpus: `python -m tools.demo_model.corpus --docs DIR`.

Writes into --out: tokenizer.json; for each stream (library, tests, docs, tasks) and split (train,
valid) the token ids of all its texts as one uint16 file, every text ended by the end-of-text
token; and valid.txt, the validation text itself. Seconds to minutes, always the same result.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from . import tokenizer as bpe
from .config import ModelConfig
from .snippets import functions
from .sources import Document, all_documents
from .tasks import make_task

SEED = 20240607
N_TASKS = {"train": 48000, "valid": 1000}
TOKENIZER_TASKS = 1500
TOKENIZER_TEXT = 160_000


def write_stream(path: Path, texts: Sequence[str], tokenizer: Tokenizer) -> int:
    """Encode the texts, put an end of text after each, and write them as one uint16 file."""
    parts = []
    for start in range(0, len(texts), 512):
        parts.extend(
            np.array([*encoding.ids, bpe.END_ID], dtype=np.uint16)
            for encoding in tokenizer.encode_batch(list(texts[start : start + 512]))
        )
    ids = np.concatenate(parts)
    ids.tofile(path)
    return len(ids)


def paragraphs(documents: Sequence[Document]) -> list[str]:
    """Plain paragraphs of the documentation, 80 to 500 characters."""
    found = []
    for document in documents:
        if document.kind == "docs":
            blocks = (block.strip("\n") for block in document.text.split("\n\n"))
            found += [b for b in blocks if 80 <= len(b) <= 500 and not b.startswith((" ", ".."))]
    return found


def tasks(documents: Sequence[Document], n_tasks: int, seed: int) -> list[str]:
    """Copying tasks over the functions and paragraphs of these documents only."""
    rng = random.Random(seed)
    code = [f for d in documents if d.kind != "docs" for f in functions(d.text)]
    code = sorted({f for f in code if 60 <= len(f) <= 900})
    prose = paragraphs(documents)
    return [make_task(code, prose, rng) for _ in range(n_tasks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, required=True, help="folder of .rst or .rst.txt files")
    parser.add_argument("--out", type=Path, default=Path("run/corpus"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    documents = all_documents(args.docs)
    splits = {
        "train": [d for d in documents if not d.is_validation],
        "valid": [d for d in documents if d.is_validation],
    }
    work = {
        name: tasks(part, N_TASKS[name], SEED + i) for i, (name, part) in enumerate(splits.items())
    }
    sample = [d.text[:TOKENIZER_TEXT] for d in splits["train"] if d.kind != "tests"]
    tokenizer = bpe.train([*sample, *work["train"][:TOKENIZER_TASKS]], ModelConfig().n_vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))

    for split, part in splits.items():
        for kind in ("library", "tests", "docs"):
            texts = [d.text for d in part if d.kind == kind]
            n_ids = write_stream(args.out / f"{kind}.{split}.u16", texts, tokenizer)
            n_chars = sum(map(len, texts))
            print(f"{split} {kind}: {len(texts)} files, {n_chars} characters, {n_ids} tokens")
        n_ids = write_stream(args.out / f"tasks.{split}.u16", work[split], tokenizer)
        print(f"{split} tasks: {len(work[split])} tasks, {n_ids} tokens")
    text = "\n".join(d.text for d in splits["valid"])
    (args.out / "valid.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
