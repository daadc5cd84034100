"""Who may ask: listening, keys, rates, access log."""
