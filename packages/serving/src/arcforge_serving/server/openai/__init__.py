"""OpenAI's chat and completions API."""
