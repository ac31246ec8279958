"""Benchmarks: one module each, run by ``python -m benchmarks.<name>``; ``python -m benchmarks`` runs
those that need no hour (not ``kills``, ``flood`` and ``endurance``)."""
