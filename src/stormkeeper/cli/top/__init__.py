"""``storm heartbeats top``: what all Pacemakers hold and receive, looked at again and again."""
