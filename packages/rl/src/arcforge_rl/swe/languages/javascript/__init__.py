"""JavaScript: tape, mocha and node:test."""
