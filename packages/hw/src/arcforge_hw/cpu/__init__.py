"""The CPU backend: one file per op."""
