"""Whether, and how wide, a draft pays: decided by what decodes cost and drafts bring.

Everything here is arithmetic on numbers that it is told: no clock, no model, no token's meaning.
"""

from bmoe_core.gate.cost_gate import CostGate
from bmoe_core.gate.ladder import MAX_WIDTH
from bmoe_core.gate.record import GateRecord

__all__ = ["MAX_WIDTH", "CostGate", "GateRecord"]
