"""Codecs: translate wire messages to and from canonical operations, one package for each protocol.

All codecs are pure: no I/O, no clock, no logging. Read ``base`` first (the contract), then
``registry`` (finds codecs) and ``profiles`` (facts about known servers), then one protocol, for
example ``v2_rest``. ``protos`` is the protobuf code that the gRPC codecs share.
"""
