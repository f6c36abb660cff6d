"""``bmoe bench``: does speculation pay, on this machine, with this model, on this text?

``plan`` says what is to be run, ``rig`` runs one cell on a loaded model, ``session`` runs them all
in turned order and keeps what is finished, ``figures`` makes statistics of the runs, ``report``
puts all of it together, and ``table``, ``words``, ``markdown``, ``plots`` and ``record`` show it.
"""
