"""Slide decks: briefs with facts, answered by HTML decks that rules judge from markup and parsed CSS."""
