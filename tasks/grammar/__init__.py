"""Chat formats as data; ids to verdicts; other people's data."""
