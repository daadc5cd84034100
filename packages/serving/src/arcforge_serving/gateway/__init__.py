"""Sessions of agents, recorded token by token."""
