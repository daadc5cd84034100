"""Checkpoints: models as Hugging Face directories, written all or nothing."""
