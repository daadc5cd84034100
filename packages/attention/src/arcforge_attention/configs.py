"""Schemas of this package's components; torch-free."""
