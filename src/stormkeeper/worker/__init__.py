"""Runs a topology's streaming queries in one PySpark driver, counts them, and beats."""
