"""The cache: which pages are free, what they hold, and which prefixes they are."""
