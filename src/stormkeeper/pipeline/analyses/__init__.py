"""What the pipeline's tables say about a cluster's troubles: each analysis is ``df -> df``.

==============  ====================================================================================
``skew``        components whose executors share their work unevenly
``throughput``  topologies that do much less, or much more, than in their own recent past
``saturation``  bolts that will have no time left, and when
``growth``      topologies whose heartbeats become larger and larger
``flapping``    workers that end and come back again and again
``together``    nodes, and Pacemakers, whose workers are late together
``alerts``      what all of them return, and how findings become alerts that begin and end
``trend``       the robust slope of a series, and whether it is more than chance
``questions``   what each analysis is asked with in ``storm pipeline``
``rounds``      all of them asked once, and what follows for the alerts
``watch``       a thread of the pipeline that makes a round every minute, and publishes the alerts
==============  ====================================================================================

Each function takes `now`. With it, a function returns what holds then: of each subject at most one
row, from the newest full bucket. Without it, a function judges every moment that the table has.
What is in the future of `now`, as after a clock was set back, does not count.
"""
