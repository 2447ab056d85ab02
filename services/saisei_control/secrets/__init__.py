"""Private inputs: sealed at rest, compared by a keyed MAC, never shown."""
