"""What the flows chain: the truth about tokens, about servers, and about what is done."""
