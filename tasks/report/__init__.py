"""What a person reads of a dataset: summary, index, card, page."""
