"""Toolchains as folders that sandboxes show over the system, fetched without root and without changing it."""
