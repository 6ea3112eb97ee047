"""Rules for several users at once."""
