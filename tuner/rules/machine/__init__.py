"""Rules for what is wrong with the machine, whatever one feels."""
