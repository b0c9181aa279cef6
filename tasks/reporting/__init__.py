"""What a person reads of a dataset: index, card and page, measured on its own files."""
