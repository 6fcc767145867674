"""What a user's commands do with a cluster: submit topologies, look at them, change and end them.

================  =================================================================================
``connection``    the calls of the leading Nimbus, and in words why one could not be made
``packing``       a topology's package, made and checked on this machine
``structure``     a topology as Storm's clients see it
``sent_conf``     the conf that a topology is submitted with
``submitting``    all of that, in its order; sends the package to Nimbus
``looking``       what Nimbus tells of topologies
``acting``        kills, activates, deactivates, rebalances
``effects``       when that has its effect, and what it waits for until then
``waiting``       waits for it
``monitoring``    what a component has emitted from one look to the next
``credentials``   a topology's credentials, as a user gives them
``blobs``         blobs there and back, piece by piece
``log_places``    on which machines a topology's workers are
``log_server``    one machine's logs, over HTTP
``log_reading``   reads them, and goes on with what comes
``log_parts``     what of a log is to be read next, and which lines are shown
================  =================================================================================
"""
