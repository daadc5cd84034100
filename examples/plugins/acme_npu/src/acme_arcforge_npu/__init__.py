"""Acme NPU backend for arcforge."""
