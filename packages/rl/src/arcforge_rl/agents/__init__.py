"""Programs that work on tasks through a session of a gateway, and the rollouts that are made of them."""
