"""Which experts a mixture-of-experts model routes to, and how many bytes that is.

``tap`` reads the router's choices from llama.cpp while it decodes, ``records`` holds them,
``tally`` counts them, and ``cache`` models what a cache of experts would have had to read.
"""
