"""Rejection sampling, best of N and expert iteration: samples each problem several times and keeps right rollouts."""
