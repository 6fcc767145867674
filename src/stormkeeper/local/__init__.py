"""A whole cluster on one machine, to which a topology is submitted, and its live view."""
