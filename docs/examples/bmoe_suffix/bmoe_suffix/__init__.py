"""Suffix decoding: draft what most often followed, in this and in earlier answers."""

from bmoe_suffix.source import SuffixSource

__all__ = ["SuffixSource"]
