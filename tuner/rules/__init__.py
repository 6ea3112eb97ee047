"""The checklist: one rule a file, found by existing."""
