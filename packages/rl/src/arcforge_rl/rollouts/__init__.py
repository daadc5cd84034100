"""Rollouts: an engine plays environments, and what it sampled is recorded."""
