"""Committed files: shards, their readers, damage, the stored job."""
