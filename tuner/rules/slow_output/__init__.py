"""Slow output: what holds up each further token."""
