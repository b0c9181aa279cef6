"""Objects by key: the contract, a folder, S3, its failures, the probe, the disk."""
