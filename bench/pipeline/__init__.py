"""The parts of the bench of the heartbeat pipeline."""
