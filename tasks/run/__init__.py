"""One run: resolve, render, generate, commit, retry, ranges, progress, maintenance."""
