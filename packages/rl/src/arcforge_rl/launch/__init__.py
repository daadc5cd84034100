"""Starts the processes of a run with one command, watches them, and ends them."""
