"""Hygon's DCUs, which torch calls cuda. Nothing here has run on one."""
