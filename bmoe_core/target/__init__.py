"""The model that decides: its protocol, and the llama.cpp implementation.

Import :class:`~bmoe_core.target.llama.LlamaTarget` from :mod:`bmoe_core`; this package imports
llama.cpp nowhere but in its own submodules, so that a draft source can be tested without it.
"""
