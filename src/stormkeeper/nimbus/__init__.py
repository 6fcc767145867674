"""The master of a cluster: leader election, scheduling, and Nimbus's Thrift service."""
