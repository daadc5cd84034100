"""Evaluation by generation: a model plays conversations turn by turn, and its answers are checked."""
