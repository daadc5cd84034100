"""Moore Threads' GPUs. Nothing here has run on one."""
