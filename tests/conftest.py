"""Settings of all tests."""

import os

import torch
from hypothesis import settings

# Triton reads it when it is imported, which torch does behind several of its modules.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The first call of a torch operator can take seconds on a busy machine; pytest's timeout is the limit.
settings.register_profile("arcforge", deadline=None, max_examples=40)
settings.load_profile("arcforge")
