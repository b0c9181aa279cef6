"""The `rawseq` command: its verbs, and what they have in common."""
