"""Dialects beside OpenAI's chat: each turns requests into a `ChatRequest`, and a chat's deltas into its events."""
