"""``storm simulate``: simulated workers of a Storm cluster beat to real Pacemakers.

All but `links` and `process` are pure: a seed and the times in their arguments decide everything.
"""
