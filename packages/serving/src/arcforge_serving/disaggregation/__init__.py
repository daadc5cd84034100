"""Prompts computed by other processes than those that decode; pages of the cache go from one to the other."""
