"""A legacy server for tests, what real ones and their client were heard saying, and replays of it.

``server`` is the server, written from the captures and sharing no code with infergate, so that a
test has an independent other end. ``captures`` holds the recorded bytes, ``replay`` sends them,
``running`` starts the server as a process of its own.
"""
