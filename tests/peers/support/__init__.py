"""Installs the peers (real servers, clients and tools), and starts and stops the servers.

Most peers are installed into one folder: the project's ``.peers``, or the folder in
the environment variable ``INFERGATE_PEERS``.
"""
