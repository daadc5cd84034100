"""The CPU backend: C++ in `native`, and what is torch but shaped by a processor's caches."""
