"""Slow to start: what holds up the first token."""
