"""Preparing, starting and stopping the real servers.

Everything they need is installed into one folder: ``.peers`` of the project, or the folder that
the environment variable ``INFERGATE_PEERS`` names.
"""
