"""Runs mixture-of-experts models larger than memory: the routed experts are read as needed.

``gguf`` finds where a file has its tensors and ``table`` which of them are experts; ``residency``
says which experts are held, ``region`` holds their bytes where llama.cpp looks for them, ``lanes``
reads them and ``mapping`` gives back what llama.cpp mapped. ``stream`` is all of it together, and
``weights`` the lossy part of it: leaving out experts that would have to be read and hardly count.
"""
