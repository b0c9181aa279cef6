"""How it runs: the `rawseq` command, the local stack, and the embedded server."""
