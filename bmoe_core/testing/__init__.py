"""Help for testing draft sources: targets without weights, and small random models.

``bmoe_core.testing.fakes`` needs nothing but bmoe; ``bmoe_core.testing.models`` writes GGUF files
and needs the extra ``bmoe-core[testing]``.
"""

from bmoe_core.testing.fakes import FakeTarget, ScriptedSource, hashed

__all__ = ["FakeTarget", "ScriptedSource", "hashed"]
