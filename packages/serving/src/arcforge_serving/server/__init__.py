"""The HTTP server: OpenAI's completions API over one engine."""
