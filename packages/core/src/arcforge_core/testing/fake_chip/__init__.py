"""A chip that nobody has: a torch device in pure Python, for tests of backends whose device is not cpu or cuda."""
