"""The gRPC services, one thin servicer each."""
