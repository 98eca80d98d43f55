"""grpclib: gRPC in pure Python on the ``h2`` package, independent of grpcio."""
