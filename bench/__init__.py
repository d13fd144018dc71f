"""Benchmarks: `tamis bench loader`, and scripts that are run from a checkout (``bench/bench_*.py``)."""
