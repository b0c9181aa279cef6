"""The rows that a record gives, what follows a row, how it is drawn."""
