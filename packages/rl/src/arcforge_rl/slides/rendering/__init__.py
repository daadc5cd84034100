"""Decks in a real browser, in a sandbox without network: geometry as it is measured, and pictures of pages."""
