"""The comparison of attention variants at equal budgets, on one page."""
