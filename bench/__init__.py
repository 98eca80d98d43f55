"""Side by side against real peers. ``make bench``; the method is in docs/decisions/0005."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))  # the real servers are shared with the tests
