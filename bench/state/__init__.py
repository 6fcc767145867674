"""What `bench/state_bench.py` is made of."""
