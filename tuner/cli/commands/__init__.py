"""One command a file; the file's `command` is it. A new file is a new command, nothing else is edited."""
