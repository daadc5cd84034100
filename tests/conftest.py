"""Settings of all tests."""

from hypothesis import settings

# The first call of a torch operator can take seconds on a busy machine; pytest's timeout is the limit.
settings.register_profile("arcforge", deadline=None, max_examples=40)
settings.load_profile("arcforge")
