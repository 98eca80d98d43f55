"""``python -m infergate`` is ``infergate``."""

import sys

from infergate.cli import main

sys.exit(main())
