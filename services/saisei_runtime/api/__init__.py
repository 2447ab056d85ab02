"""gRPC servicers of the runtime: thin, no rules of their own."""
