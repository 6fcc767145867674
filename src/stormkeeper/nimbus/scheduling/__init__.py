"""Who runs where: one function of what was read, which says what is to be written.

============  ==================================================================================
module        what it is for
============  ==================================================================================
``planning``  ``plan``: the whole decision
``cluster``   what it is made from
``actions``   what it says is to be done
``standing``  of one topology: which workers stay, and which queries need a new place
``room``      the free slots and memory of the supervisors, and which of them comes next
``placing``   who gets a slot first
``wording``   what is told of a topology, for people: its ``sched_status``
``watching``  which workers are alive, by what their heartbeats say of their newest launch
``mapping``   the same from and to Storm's records
``reading``   a whole cluster out of what was read of it
============  ==================================================================================
"""
