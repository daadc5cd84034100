"""The HTTP server: OpenAI's API over one paged engine."""
