"""Rules for what does not fit into memory."""
