"""The commands of a migration: what ``infergate probe``, ``replay``, ``explain`` and ``report``
do. The command line (``cli``) parses their arguments and prints their results."""
