"""Python: pytest."""
