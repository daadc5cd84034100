"""Quantises checkpoints: folds, rotations, smoothing, rounding."""
