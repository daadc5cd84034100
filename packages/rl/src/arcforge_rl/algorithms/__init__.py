"""Algorithms of reinforcement learning: a file and a class each."""
