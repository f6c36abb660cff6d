"""Limits of llama.cpp that more than one module has to know, without importing it."""

MAX_THREADS = 512
"""GGML_MAX_N_THREADS of ggml.h, above which llama.cpp crashes."""
