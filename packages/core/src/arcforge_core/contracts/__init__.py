"""Typed contracts through which the packages meet. Hooks register; these are what is called."""
