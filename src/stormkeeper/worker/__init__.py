"""Runs a topology's streaming queries in one PySpark driver, counts their rows, and beats."""
