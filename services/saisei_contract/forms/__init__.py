"""One module for each Form: the shape of its spec, what equal means, what it refers to (contract 2)."""
