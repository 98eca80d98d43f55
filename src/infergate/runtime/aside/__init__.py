"""Work on long text, done in processes beside the one that serves.

Neither JSON library lets go of the interpreter while it works, so a thread would not do: see
docs/decisions/0008-long-json-aside.md.
"""

from infergate.runtime.aside.pool import Pool

__all__ = ["Pool"]
