"""The embedded demo model, and how it is found."""

from __future__ import annotations

from pathlib import Path


def demo_model() -> Path:
    """The GGUF file of the demo model, which ships in this package.

    A small hybrid mixture-of-experts model with a multi-token-prediction head, so that every part
    of bmoe can be tried offline. It writes code-shaped text and knows nothing; see
    docs/explanation/demo-model.md.
    """
    return Path(__file__).with_name("demo.gguf")
