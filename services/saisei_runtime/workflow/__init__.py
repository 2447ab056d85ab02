"""The workflow engine: a pure machine, and the journal, scheduler and subscriptions around it."""
