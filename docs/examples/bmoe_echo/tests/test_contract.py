"""The contract that every draft source keeps, and what this one drafts."""

import numpy as np
import pytest
from bmoe_echo import EchoSource

from bmoe_core.testing import DraftSourceContract


class TestContract(DraftSourceContract):
    @pytest.fixture
    def make_source(self):
        return EchoSource


def test_a_token_that_came_twice_is_drafted_again():
    assert EchoSource(times=3).draft(np.array([7, 4, 4]), 8) == [4, 4, 4]


def test_no_more_than_there_is_room_for():
    assert EchoSource(times=3).draft(np.array([7, 4, 4]), 2) == [4, 4]


def test_anything_else_is_declined():
    assert EchoSource().draft(np.array([4, 7]), 8) is None
