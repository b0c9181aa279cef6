"""Prompt files: records, formats, mixing, duplicates, the plan's batches."""
