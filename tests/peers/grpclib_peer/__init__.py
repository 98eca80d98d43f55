"""grpclib: gRPC in pure Python on the ``h2`` package, a client and a server that share nothing with
grpcio."""
