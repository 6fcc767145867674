"""The Pacemaker daemon.

A request passes `channels` (bytes to frames), `client_session` (permissions of the client),
`request_handler` (limits of `store_limits`) and `pulse_store`. The compiled engine overwrites
existing pulses for clients that may write, and reads them for clients that may read, without these
steps. A new limit on sizes or paths belongs to `store_limits`, a new rule by client or address to
`client_session`.
"""
