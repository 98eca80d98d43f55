"""The implementation of the migration commands ``infergate probe``, ``replay``, ``explain`` and
``report``. The command line (``cli``) parses their arguments and prints their results."""
