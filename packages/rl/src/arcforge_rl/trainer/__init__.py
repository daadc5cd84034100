"""Training on rollouts: packing, log-probabilities, the Lightning module, the loop."""
