"""What `scripts/loss_compare` is made of; needs nothing but the standard library."""
