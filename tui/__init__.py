"""The full-screen front end. Not part of this version: `rooftune` in a terminal says which command to use."""
