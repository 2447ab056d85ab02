"""Contexts, journal, timers, serving, Bindings: runs tenant code, and decides nothing about who may do what."""
