"""Metrics of a run: accumulators, writers, sinks and diagnostics."""
