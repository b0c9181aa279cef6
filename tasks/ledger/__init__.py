"""What is planned and what is done: batches, plan, receipts, claims, journals."""
