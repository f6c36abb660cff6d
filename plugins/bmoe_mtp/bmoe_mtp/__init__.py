"""Draft with the model's own multi-token-prediction head."""

from bmoe_mtp.source import MtpSource

__all__ = ["MtpSource"]
