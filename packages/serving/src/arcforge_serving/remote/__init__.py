"""External servers, vLLM and SGLang, as engines."""
