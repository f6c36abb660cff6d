"""The source in its place: found by name, driven by its options, and harmless to the answer."""

from __future__ import annotations

import pytest

from bmoe_core import SourceOptionError, Tally, generate, installed_sources, open_source
from bmoe_core.testing import FakeTarget, hashed


def test_it_is_installed_under_its_name() -> None:
    """The entry point of this distribution."""
    found = {source.name: source.distribution for source in installed_sources()}
    assert found["ngram"] == "bmoe-ngram"


def test_options_reach_it() -> None:
    """By name from Python, as from the command line."""
    plugin = open_source("ngram", {"min_match": 5, "max_match": 9}).plugin
    assert (plugin.min_match, plugin.max_match) == (5, 9)


def test_refused_options_say_why() -> None:
    """Both values are named."""
    with pytest.raises(SourceOptionError, match=r"min_match \(20\).*max_match \(12\)"):
        open_source("ngram", {"min_match": 20})


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("seed", range(10))
def test_the_answer_is_the_plain_one(width: int, seed: int) -> None:
    """On a target that falls into cycles it drafts, is accepted, and changes nothing."""
    rule = hashed(order=2, seed=seed)
    plain = generate(FakeTarget(rule=rule), [1, 2, 3], n_predict=100)
    list(plain)
    source = open_source("ngram")
    generation = generate(
        FakeTarget(rule=rule), [1, 2, 3], source=source, n_predict=100, width=width, strict=True
    )
    tally = Tally()
    for step in generation:
        tally.add(step)
    assert generation.tokens == plain.tokens
    assert tally.summary.n_accepted > 0
