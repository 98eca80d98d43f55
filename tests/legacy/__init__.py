"""A legacy server for tests, recordings of real servers and their client, and replays of these.

``server`` was written from the recordings and shares no code with infergate, to be an
independent peer. ``captures`` holds the recorded bytes, ``replay`` sends them, and ``running``
starts the server as a process.
"""
