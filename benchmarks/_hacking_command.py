"""A command of arcforge with the environment of `_notices`: ``_hacking_command.py rl environment=notices``."""

import sys

import _notices
from arcforge_core.cli.main import main

if __name__ == "__main__":
    _notices.register()
    sys.exit(main(sys.argv[1:]))
