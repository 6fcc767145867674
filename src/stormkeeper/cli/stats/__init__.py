"""``storm stats``: what a topology counts, now and in the past, out of the pipeline's tables."""
