"""Rules for long conversations."""
