"""Who may do what: principals, their tokens, their rights."""
