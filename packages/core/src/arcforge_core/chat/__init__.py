"""Chat: templates that render messages to token ids, and parsers that read the model's answers."""
