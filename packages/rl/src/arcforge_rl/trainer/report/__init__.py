"""The report of a reinforcement-learning run."""
