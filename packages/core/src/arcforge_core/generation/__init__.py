"""Drawing tokens from a model."""
