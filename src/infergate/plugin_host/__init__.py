"""Loads plug-ins and runs them within limits. ``infergate.plugins`` has the plug-ins' interfaces.

- ``loading``: finds the class of a plug-in, imports it within a time limit, and checks it
- ``options``: validates the options of a plug-in
- ``instances``: creates and closes plug-ins
- ``runner``: runs their methods outside the event loop, with timeouts and counters
- ``results``: checks their return values
"""
