"""A legacy server for tests, recordings of real servers and their client, and tools that replay the
recordings.

``server`` was written from the recordings and shares no code with infergate, so it is an
independent peer. ``captures`` holds the recorded bytes, ``replay`` sends them, and ``running``
starts the server as a process.
"""
