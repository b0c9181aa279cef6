"""One SGLang server: wire, what it says of itself, probe, gates."""
