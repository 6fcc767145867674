"""The parts of every daemon: start and end, logs, files, threads, children, HTTP, Spark."""
