"""Evaluation by generation: conversations are played by a model, turn by turn, and its answers checked."""
