"""What each service process needs and none of them owns: gRPC plumbing, credentials, the clock, databases, logs.

Imports `saisei_contract` only; control, runtime, gateway and cli build on it.
"""

import os

# Children only ever exec. gRPC's handlers around a fork would stop its threads for each of them, and can crash one.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
