"""The truth about what is done: sources, journals, shards, stores, the ledger and its audit."""
