"""What all API dialects share."""
