"""Many servers: windows, the watch, dispatch, attempts, quarantine."""
