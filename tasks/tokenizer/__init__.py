"""One tokenizer, proved; messages to prompt ids."""
