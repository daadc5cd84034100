"""The chat page and the dashboard."""
