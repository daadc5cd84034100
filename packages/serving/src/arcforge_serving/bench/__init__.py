"""``arcforge-bench``: load on an OpenAI endpoint, and what its answers took."""
