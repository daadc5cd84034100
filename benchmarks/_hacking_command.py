"""A command of arcforge with the components of benchmarks: ``_hacking_command.py rl environment=notices``."""

import sys

import _notices
import _packaging
from arcforge_core.cli.main import main

if __name__ == "__main__":
    _notices.register()
    _packaging.register()
    sys.exit(main(sys.argv[1:]))
