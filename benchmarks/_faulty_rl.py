"""``arcforge-rl`` with the component ``engine=faulty`` of ``tests/support/faulty_engine.py``."""

import sys

import _path  # noqa: F401
from arcforge_core.cli.main import main
from support import faulty_engine

if __name__ == "__main__":
    faulty_engine.register()
    sys.exit(main(["rl", *sys.argv[1:]]))
