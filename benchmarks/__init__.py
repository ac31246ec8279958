"""Benchmarks: one module each, run by ``python -m benchmarks.<name>``; ``python -m benchmarks`` runs all."""
