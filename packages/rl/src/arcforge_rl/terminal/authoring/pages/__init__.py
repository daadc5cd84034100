"""Families of tasks about the pages of a corpus: each draws from related pages, or says why they do not fit."""
