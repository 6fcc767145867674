"""What every daemon does: start, ready line, signals, logs, a Spark session."""
