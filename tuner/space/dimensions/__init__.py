"""One dimension a file."""
