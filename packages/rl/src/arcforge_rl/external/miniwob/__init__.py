"""Small pages of MiniWoB++, used by clicking and typing."""
