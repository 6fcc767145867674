"""The Pacemaker daemon.

Every request passes `channels` (bytes to frames), `client_session` (may this client do this?),
`request_handler` (is the request within the limits of `store_limits`?) and `pulse_store`. A new
limit on size or path belongs to `store_limits`, a new rule by client to `client_session`.
"""
