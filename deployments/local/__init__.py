"""What runs on this machine alone: the stack, the demo, SeaweedFS, their folders."""
