"""Helpers that only tests, benchmarks and scripts use."""
