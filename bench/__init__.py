"""Benchmarks of infergate and of its peers: ``make bench``. docs/decisions/0005 describes the
method."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))  # the peers' servers are shared with the tests
