"""Schedules: which matches are due, their records, their deliveries (CR-05, CR-06)."""
