"""Rollouts: an engine plays environments, and its samples are recorded."""
