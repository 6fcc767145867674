"""Runs a topology's streaming queries in a PySpark driver, counts rows, and sends heartbeats."""
