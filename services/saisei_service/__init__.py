"""What each service process needs and none of them owns: gRPC plumbing, credentials, the clock, databases, logs.

Imports `saisei_contract` only; control, runtime, gateway and cli build on it.
"""
