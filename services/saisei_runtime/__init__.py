"""Contexts, journal, timers, serving and Bindings: the service that runs tenant code, and never decides who may do what."""
