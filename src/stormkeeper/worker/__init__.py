"""Runs a topology's streaming queries in one PySpark driver, counts rows, and sends heartbeats."""
