"""What every daemon does: start, say that it is ready, obey signals, log."""
