"""Loads plug-ins and runs them within limits. ``infergate.plugins`` has the plug-ins' interfaces.

- ``loading``: finds the class of a plug-in, imports it within a time limit, and checks it
- ``options``: validates the options of a plug-in
- ``instances``: creates and starts plug-ins
- ``runner``: runs the methods of plug-ins in ``threads``, with timeouts and counters
- ``results``: checks the return values of plug-ins
- ``calls`` and ``transform_step``: the facts that plug-ins receive about a request, and the step
  that runs a transform
"""
