"""A command of arcforge with the environments of `_slow_tools`: ``_slow_command.py rl environment=slow_errands``."""

import sys

import _slow_tools
from arcforge_core.cli.main import main

if __name__ == "__main__":
    _slow_tools.register()
    sys.exit(main(sys.argv[1:]))
