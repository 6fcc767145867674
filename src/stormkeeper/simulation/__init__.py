"""``storm simulate``: simulated workers of a Storm cluster beat to real Pacemakers.

All but `process` is pure: a seed and times decide everything.
"""
