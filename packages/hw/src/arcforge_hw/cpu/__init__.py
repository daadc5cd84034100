"""The CPU backend: C++ kernels in `native`, and torch kernels whose tiles fit a processor's caches."""
