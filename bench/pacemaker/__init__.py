"""What the measurements of a Pacemaker are made of; `bench/pacemaker_bench.py` is the face."""
