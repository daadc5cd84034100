"""arcforge optim."""
