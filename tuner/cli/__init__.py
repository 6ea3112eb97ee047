"""The command line: one front end over `tuner.session`. stdout is the answer, stderr the talk, the exit code a promise."""
