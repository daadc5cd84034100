"""arcforge rl: environments and rollouts."""
