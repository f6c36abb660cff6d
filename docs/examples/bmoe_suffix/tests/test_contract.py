"""The contract of every draft source."""

from __future__ import annotations

import pytest
from bmoe_suffix import SuffixSource

from bmoe_core.testing import DraftSourceContract


class TestContract(DraftSourceContract):
    @pytest.fixture
    def make_source(self) -> type[SuffixSource]:
        return SuffixSource
