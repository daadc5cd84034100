"""Typed contracts through which packages interact. Hooks register components; contracts define how they are called."""
