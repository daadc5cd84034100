"""Training: plain losses and steps, a thin Lightning module, resumable runs."""
