"""Compares ways to quantise one checkpoint on held-out text."""
