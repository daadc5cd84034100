"""What environments are built from, and the plainest of them."""
