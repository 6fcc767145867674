"""Runs a topology's streaming queries in one PySpark driver, counts them, and beats.

====================  ==============================================================================
``__main__``          the command line
``process``           the worker from its start to its end: read this first
``job``               what it is to run, and as whom
``unpacked``          a topology's package as a supervisor has laid it out
``overrides``         the topology's saved configuration, and its credentials
``settings``          the configuration that it runs with, and what of it goes to Spark
``sizes``             how much of its machine its Spark uses where nobody says so
``session``           its Spark session
``remote``            Spark on other machines: its settings, the code that it is sent, its errors
``executors``         notices that there are none any more
``command_line``      options of all commands that run a script
``script``            runs a user's script as Python would
``describe_script``   the process that describes a script
``building``          makes queries of a topology's functions
``running``           runs them
``script_queries``    the queries of a script without a topology
``live_queries``      all that run, whoever has started them: their end
``stopping``          ends queries between two batches
``deadlines``         how long each step of a stop may take
``ending``            whether the worker is to end, and its exit code
``claims``            which launch of a query counts: claims in its checkpoint
``claiming``          how a worker keeps to those of its job
``file_sinks``        refuses a folder that another run has written to
``query_events``      what Spark reports of queries
``jvm_watch``         asks the JVM for a sign of life, and for the batches that run
``udf_daemon``        PySpark's daemon of Python workers, which tells any error to the JVM
``batch_readings``    what these have read of a batch
``counting``          from rows on edges to what components did
``statistics``        counts over Storm's windows
``heartbeat``         the record of a heartbeat
``beater``            sends it
``alive``             a file that says to the supervisor that the worker gets on
``log_file``          keeps the worker's log small
``log_levels``        log levels that are set while the worker runs
``cluster_link``      the session with the cluster's state
``reports``           what it is asked and told: status, errors, ends
``failure``           says what went wrong in a user's code
====================  ==============================================================================
"""
