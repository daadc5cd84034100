"""arcforge rl."""
