"""What every daemon does: start, ready line, signals, logs, disks, a Spark session."""
