"""Where Spark looks for ``format("pacemaker")``: it imports ``pyspark_<name>`` by itself."""
