"""Exporters: shards → what trainers read."""
