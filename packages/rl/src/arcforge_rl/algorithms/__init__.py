"""Algorithms of reinforcement learning, one file and one class each."""
