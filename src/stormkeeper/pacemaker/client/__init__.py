"""Clients of Pacemakers: `single` talks to one server, `pool` to several that share nothing.

=====================  ===========================================================================
``pool``               several Pacemakers as one
``pulse_writer``       which server a pulse goes to, and where to while that one fails
``fanout``             all servers are asked at once; nobody waits for one that is not well
``questions``          what is asked of one server, in several steps where it takes that
``readings``           which of several copies counts; a tombstone counts as a copy
``missed_deletes``     the deletes that a server missed are made good when it is back
``missing_servers``    which servers are missing in what was read
``single``             one Pacemaker, by its verbs, and the tries of a request
``protocol``           what is sent when, and what becomes of each call, without I/O
``calls``              what it is made of: calls, and the requests under way
``answers``            what a server may answer
``backoff``            how long a server is left alone after a failure
``authenticating``     how a client proves who it is
``server_extensions``  which requests a server understands, as a Java Pacemaker ends at others
``socket_thread``      the thread that does what `protocol` says
``dialer``             makes its connections
``client_connection``  moves bytes on one of them
``client_tls``         TLS as a client speaks it
``background``         does what may block
``settings``           from the configuration to clients
=====================  ===========================================================================
"""

from stormkeeper.pacemaker.client.single import DEFAULT_PORT, PacemakerClient

__all__ = ["DEFAULT_PORT", "PacemakerClient"]
