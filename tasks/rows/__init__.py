"""Rows as rooms hand them over: records, verdict codes, row ids, repeated keys."""
