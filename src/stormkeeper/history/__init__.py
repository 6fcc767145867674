"""What was: statistics, events and alerts out of the pipeline's tables, through DuckDB.

==============  ==================================================================================
``asking``      ``Past``: the tables of a pipeline, to be asked with SQL
``naming``      the components of rows that have tasks in their place
``statistics``  what components count, now and bucket by bucket
``readings``    a topology's newest reading, or its course of time, for who looks at it
``plots``       such a course, drawn in the terminal
``happenings``  what happened to workers; what the analyses found
``suggesting``  what an error says to somebody who asked for what is not there
==============  ==================================================================================

Neither Spark nor pyarrow is loaded: an answer takes a fraction of a second, also out of a week.
"""

from stormkeeper import extras

extras.require("spark", "the history of workers", "duckdb")
