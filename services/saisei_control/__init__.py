"""Resources and Operations: the service that decides what is to be hosted, and never runs tenant code."""
