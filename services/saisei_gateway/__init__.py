"""HTTP in front of both services: Host API v2, instances and event streams, worker traffic. Keeps no state."""
