"""The Pacemaker daemon: what it holds, how it answers, and the sockets around that.

===============  =================================================================================
``daemon``       the process: its signals, its exit codes
``serving``      one Pacemaker in an event loop: what it is made of, its timers, its end
``reload``       what of a changed configuration a running Pacemaker takes
``connections``  the clients' sockets, and requests and answers as bytes
``session``      what one client may do, and the lines about it in the log
``access``       who may do what, and how a client proves who it is
``answering``    turns requests into calls of the store, and results into frames
``store``        the pulses; `store.pulse_store` says what its parts are
``engine``       chooses the compiled engine or the one in plain Python
``_compiled``    the compiled one: the twins of `store.pulse_index` and of
                 `connections.asyncio_channels`
``snapshot``     what can be seen of a Pacemaker: its events, counted, and all at one moment
``metrics``      the pages for Prometheus and for health checks
``monitoring``   serves these pages, and reports to systemd
===============  =================================================================================
"""
