"""Rejection sampling, best of N and expert iteration: several tries at a problem, of which right ones are kept."""
