"""The truth about tokens: messages to prompt ids, ids to verdicts. No network."""
