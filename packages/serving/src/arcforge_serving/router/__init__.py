"""Several engine processes behind one address."""
