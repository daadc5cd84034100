"""Environments that play packages of third parties, each in a process and a sandbox of its own."""
