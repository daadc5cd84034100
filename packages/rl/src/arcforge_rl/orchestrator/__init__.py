"""Rollouts and training at the same time: which rollouts run, which are trained on, and the record of both."""
