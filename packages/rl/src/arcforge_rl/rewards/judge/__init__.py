"""Generative judges."""
