"""The CUDA backend: kernels in Triton, which other vendors' Triton compilers may also compile."""
