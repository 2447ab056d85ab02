"""The runtime's own tables and their migrations."""
