"""One file per verb of the `rawseq` command."""
