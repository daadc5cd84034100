"""Checkpoints: models as Hugging Face directories, written atomically."""
