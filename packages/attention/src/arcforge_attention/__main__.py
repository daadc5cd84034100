"""``python -m arcforge_attention COMMAND ...`` is ``arcforge COMMAND ...``."""

import sys

from arcforge_core.cli.main import main

sys.exit(main())
