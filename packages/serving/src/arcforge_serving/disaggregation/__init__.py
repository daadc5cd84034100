"""Prefill/decode disaggregation: some processes compute prompts, others decode, and cache pages move between them."""
