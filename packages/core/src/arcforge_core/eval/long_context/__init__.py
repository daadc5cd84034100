"""Retrieval and aggregation over long contexts, in the manner of RULER (Hsieh et al., 2024)."""
