"""``storm simulate``: the workers of a Storm cluster that is not there beat to real Pacemakers.

==============  ===================================================================================
``profiles``    how large a cluster is, in three shapes
``components``  what a topology consists of: components, streams, rates and latencies
``cluster``     nodes, topologies, and which worker runs what
``activity``    how much was done by when, in closed form
``workers``     what a worker says at a time, and which of it a server took
``bodies``      heartbeats in Storm's bytes, made fast
``model``       which heartbeats are due, who ends and who starts
``troubles``    what is planted
``truth``       what was done, as lines of JSON
``links``       the connections to Pacemakers
``process``     the clock, signals, and what is said meanwhile
==============  ===================================================================================

All but the last three are pure: a seed and the times that they are given decide everything.
"""
