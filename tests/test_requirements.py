"""Which versions of bmoe-core a plugin's dependency allows."""

from __future__ import annotations

import pytest

from bmoe_core import requirements
from bmoe_core.requirements import unmet_requirement

# what the plugin requires, the installed release, what is reported as not met
TABLE = [
    ("bmoe-core", "0.1.0", None),
    ("bmoe-core>=0.1", "0.1.0", None),
    ("bmoe-core>=0.2", "0.1.0", ">=0.2"),
    ("bmoe-core>=0.1", "0.10.0", None),
    ("bmoe_core >= 0.2", "0.1.0", ">= 0.2"),
    ("BMOE.Core (>=0.2)", "0.1.0", ">=0.2"),
    ("bmoe-core[testing]>=0.2", "0.1.0", ">=0.2"),
    ("bmoe-core<0.2,>=0.1", "0.1.9", None),
    ("bmoe-core<0.2,>=0.1", "0.2", "<0.2,>=0.1"),
    ("bmoe-core<=0.1", "0.1.0", None),
    ("bmoe-core>0.1", "0.1.0", ">0.1"),
    ("bmoe-core==0.1", "0.1.0", None),
    ("bmoe-core==0.1.*", "0.1.7", None),
    ("bmoe-core==0.1.*", "0.2.0", "==0.1.*"),
    ("bmoe-core!=0.1.1", "0.1.1", "!=0.1.1"),
    ("bmoe-core~=0.2", "0.9.1", None),
    ("bmoe-core~=0.2", "1.0", "~=0.2"),
    ("bmoe-core~=0.2.3", "0.3.0", "~=0.2.3"),
    ("bmoe-core>=0.2", "0.2.0rc1", None),
    ("bmoe-core>=0.2; extra == 'all'", "0.1.0", None),
    ("bmoe-core @ file:///somewhere", "0.1.0", None),
    ("bmoe-coreutils>=9", "0.1.0", None),
    ("attrs>=99", "0.1.0", None),
]


@pytest.mark.parametrize(("requirement", "installed", "unmet"), TABLE)
def test_what_is_not_met(
    requirement: str, installed: str, unmet: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip reads it, or nothing where it is of a form that is not read."""
    monkeypatch.setattr(requirements, "version", lambda name: installed)
    assert unmet_requirement(["numpy>=1.24", requirement]) == unmet
