"""``storm simulate``: simulated workers of a Storm cluster beat to real Pacemakers.

All but `process` is pure: a seed and the times in their arguments decide everything.
"""
