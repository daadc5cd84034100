"""Servers of others, vLLM and SGLang, behind the engine contract."""
