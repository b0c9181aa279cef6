"""The restart of a server: its process found, stopped and started without a parser."""
