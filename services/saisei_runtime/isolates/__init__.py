"""Isolates: Node processes and threads that run tenant code, and the proof that it has stopped."""
