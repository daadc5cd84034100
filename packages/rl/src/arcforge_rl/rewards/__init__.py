"""Learned rewards."""
