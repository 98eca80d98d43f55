"""The canonical types that every protocol, route and backend shares.

The package imports only numpy and the standard library, and uses no files or sockets. A codec
translates a protocol's messages (``wire``) into an operation of ``messages`` and back; a
``RequestContext`` holds the rest of a request, with the ``RoutePolicy`` of its route and the
``RequestRecord`` that is logged.

Read in this order: ``datatypes``, ``tensor``, ``messages``, ``errors``, ``wire``,
``request_context``, ``limits``, ``memory``. The other modules can be read in any order."""
