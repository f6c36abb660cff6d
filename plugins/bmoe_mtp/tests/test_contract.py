"""The contract of every draft source, on a random model with a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bmoe_mtp import MtpSource

from bmoe_core import LlamaModel, LlamaTarget
from bmoe_core.testing import DraftSourceContract
from bmoe_core.testing.models import f32_cache


class TestContract(DraftSourceContract):
    @pytest.fixture
    def make_source(self) -> type[MtpSource]:
        return MtpSource

    @pytest.fixture
    def make_target(self, model: LlamaModel) -> Iterator[Callable[[], LlamaTarget]]:
        targets: list[LlamaTarget] = []

        def make() -> LlamaTarget:
            targets.append(
                LlamaTarget(model, n_ctx=1024, max_draft=8, n_threads=1, prepare=f32_cache)
            )
            return targets[-1]

        yield make
        for target in targets:
            target.close()
