"""The audit: all of a dataset read again, a sample of it scored again."""
