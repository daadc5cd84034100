"""Go repositories; see `arcforge_rl.swe.languages`."""
