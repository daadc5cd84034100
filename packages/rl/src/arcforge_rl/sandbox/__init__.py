"""Sandboxes for untrusted code: bubblewrap, Landlock, Docker."""
