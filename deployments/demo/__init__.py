"""The demo's prompts and its folder."""
