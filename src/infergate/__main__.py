"""Makes ``python -m infergate`` run the command ``infergate``."""

import sys

from infergate.cli import main

if __name__ == "__main__":
    sys.exit(main())
