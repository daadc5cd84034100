"""Kunlunxin's XPUs, which torch calls cuda. Nothing here has run on one."""
