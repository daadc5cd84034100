"""Tokenizers and the chat templates that ship with them."""
