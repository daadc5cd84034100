"""Builders of conversations whose answers can be checked."""
