"""Who is alive: heartbeats with their age and server, and how far back each server can vouch."""
