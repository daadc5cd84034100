"""C and C++ repositories; see `arcforge_rl.swe.languages`."""
