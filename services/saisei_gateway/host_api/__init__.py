"""Host API v2 over HTTP: strict reading, route handlers, and the shape of answers (contract 1.1-1.5, 1.9, 1.15)."""
