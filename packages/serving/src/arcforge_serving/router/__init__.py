"""A router and its engine processes."""
