"""Environments as packages for other libraries."""
