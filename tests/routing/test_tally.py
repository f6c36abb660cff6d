"""Unions, bytes, widening, the split and the modelled cache, against figures worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmoe_core.routing.cache import CacheSize, LruCache
from bmoe_core.routing.records import DecodeRouting, ExpertLayer, LayerRouting
from bmoe_core.routing.tally import MIB, RoutingSummary, RoutingTally

LAYERS = {0: ExpertLayer(n_expert=4, expert_bytes=MIB), 2: ExpertLayer(8, 2 * MIB)}


Routed = tuple[int, tuple[int, ...]]


def decode(n_tokens: int, *routed: Routed, by_target: bool = True) -> DecodeRouting:
    layers = tuple(LayerRouting(layer, experts, n_used=2) for layer, experts in routed)
    return DecodeRouting(by_target=by_target, n_tokens=n_tokens, layers=layers)


PLAIN = decode(1, (0, (1, 3)), (2, (0, 5)))
VERIFY = decode(4, (0, (0, 1, 3)), (2, (0, 2, 4, 5, 7)))
HEAD = decode(1, (2, (6, 7)), by_target=False)


def test_a_trace_with_known_unions() -> None:
    """2 + 4 MiB plain, 3 + 10 MiB verified, 4 MiB of the head."""
    tally = RoutingTally(LAYERS)
    assert tally.add([PLAIN]) == RoutingSummary(target_bytes=6 * MIB, n_distinct=4, n_layers=2)
    step = tally.add([HEAD, VERIFY])
    assert step.target_bytes == step.verify_bytes == 13 * MIB
    assert step.source_bytes == 4 * MIB
    assert step.verify_single_bytes == 6 * MIB
    summary = tally.summary
    assert summary.demanded_mib_per_token(4) == pytest.approx(23 / 4)
    assert summary.distinct_per_layer == pytest.approx((4 + 8) / 4)
    assert summary.widening == pytest.approx(13 / 6)
    assert summary.source_share == pytest.approx(4 / 23)
    assert tally.expert_bytes == (4 * 1 + 8 * 2) * MIB


def test_the_report_s_lines() -> None:
    """The demand, the split, and the cache, which is called modelled."""
    tally = RoutingTally(LAYERS, CacheSize(16))
    tally.add([PLAIN])
    tally.add([HEAD, VERIFY])
    assert tally.lines("mtp", 4) == [
        "moe: 5.75 MiB/token demanded, 3.0 distinct experts a layer (of 8), verify widening ×2.17",
        "mtp: of 23.0 MiB demanded, 4.0 MiB (17.4%) was the head's own routing, "
        "19.0 MiB the verify batches",
        # 5 of 14 slices; 15 of the 23 MiB are read.
        "moe: modelled, a cache of 16 MiB holds 80% of the expert bytes, hits 35.7% and reads "
        "3.75 MiB/token",
    ]


def test_nothing_is_claimed_of_nothing() -> None:
    """No verify decode: no widening; no own decodes: no split; no tokens: no lines."""
    tally = RoutingTally(LAYERS)
    assert tally.lines("none", 0) == []
    tally.add([PLAIN])
    assert tally.lines("none", 1) == [
        "moe: 6.00 MiB/token demanded, 2.0 distinct experts a layer (of 8)"
    ]
    empty = RoutingSummary()
    assert empty.hit_rate is empty.widening is empty.distinct_per_layer is empty.source_share
    assert empty.hit_rate is None
    assert tally.to_dict(1)["modelled_read_mib_per_token"] is None


def test_the_prompt_warms_the_cache_and_is_not_counted() -> None:
    """The first step then finds what the prompt read."""
    tally = RoutingTally(LAYERS, CacheSize(100))
    tally.warm([PLAIN])
    assert tally.summary == RoutingSummary()
    step = tally.add([VERIFY])
    assert (step.n_hits, step.n_misses) == (4, 4)
    assert step.read_bytes == (1 + 3 * 2) * MIB


def test_an_automatic_size_says_what_it_was_made_of() -> None:
    """Available memory less the floor."""
    size = CacheSize.automatic()
    assert size.available_mib is not None
    assert size.mib == max(0, size.available_mib - 1024)
    assert str(CacheSize(3219, 4243)) == "3219 MiB (auto: 4243 MiB available less 1024)"
    assert str(CacheSize(64)) == "64 MiB"


def reference(touches: list[tuple[int, int, int]], capacity: int) -> list[bool]:
    """A least-recently-used cache as one would write it on a blackboard."""
    held: list[tuple[int, int, int]] = []
    hits = []
    for touch in touches:
        hits.append(touch in held)
        if touch in held:
            held.remove(touch)
        elif touch[2] > capacity:
            continue
        held.append(touch)
        while sum(size for _, _, size in held) > capacity:
            held.pop(0)
    return hits


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=200),
    st.integers(0, 40),
)
def test_the_cache_against_a_reference(keys: list[tuple[int, int]], capacity: int) -> None:
    """Same hits, for slices of several sizes, those larger than the cache included."""
    touches = [(layer, expert, 3 + 5 * layer) for layer, expert in keys]
    cache = LruCache(capacity)
    hits = [cache.touch(*touch) for touch in touches]
    assert hits == reference(touches, capacity)
    assert cache.n_hits == sum(hits)
    assert cache.read_bytes == sum(
        size for (_, _, size), hit in zip(touches, hits, strict=True) if not hit
    )


def test_a_larger_cache_never_hits_less() -> None:
    """With slices of one size a least-recently-used cache has this property."""
    chooser = random.Random(1)
    touches = [(0, chooser.randrange(12), 1) for _ in range(500)]
    rates = []
    for capacity in range(13):
        cache = LruCache(capacity)
        rates.append(sum(cache.touch(*touch) for touch in touches))
    assert rates == sorted(rates)
    assert rates[0] == 0
    assert rates[12] == 500 - 12
