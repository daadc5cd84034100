"""MetaX's GPUs, which torch calls cuda. Nothing here has run on one."""
