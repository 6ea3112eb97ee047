"""One rendering of a result for each runtime or reader; a newcomer adds one by writing one file here."""
