"""The Pacemaker daemon.

A request passes `channels` (bytes to frames), `client_session` (the client's permissions),
`request_handler` (limits of `store_limits`) and `pulse_store`. The compiled engine reads and
overwrites existing pulses without these steps, unless the session forbids it. A new limit on sizes
or paths belongs to `store_limits`, a new rule by client or address to `client_session`.
"""
