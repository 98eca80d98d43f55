"""Prepares, starts and stops the real servers.

Everything that they need is installed into one folder: the project's ``.peers``, or the folder in
the environment variable ``INFERGATE_PEERS``.
"""
