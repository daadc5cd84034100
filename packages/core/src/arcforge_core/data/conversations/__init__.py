"""Conversations as training data: parsed, checked, filtered and rendered, with a loss mask for every token."""
