"""Conversations with a simulated user over a database: tau2's retail, airline and telecom."""
