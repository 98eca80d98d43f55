"""Codecs translate wire messages to canonical operations and back. Each protocol has a package.

Codecs have no I/O, no clock and no logging. Read ``base`` first (the interface), then
``registry`` (finds codecs) and ``profiles`` (facts about known servers), then one protocol, for
example ``v2_rest``. ``protos`` contains the protobuf code that the gRPC codecs share.
"""
