"""What the runtime is to host: the revisioned log, its watchers, and who has acknowledged what."""
