"""The pulses that a Pacemaker holds, without I/O."""
