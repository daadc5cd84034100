"""Conversations as training data: read, checked, filtered, rendered, with a loss mask for every token."""
