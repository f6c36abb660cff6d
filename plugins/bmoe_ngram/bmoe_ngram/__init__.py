"""Prompt lookup: draft what followed the last time the same tokens occurred."""

from bmoe_ngram.source import NgramSource

__all__ = ["NgramSource"]
