"""Callbacks of training: metrics, evaluation, checkpoints, progress, stopping."""
