"""GLM-5-shaped language models; `causal_lm.py` reads top to bottom."""
