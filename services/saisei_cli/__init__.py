"""`saisei`: the command line for operators and app developers. Talks gRPC; never reaches into a database."""
