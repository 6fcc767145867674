"""Nimbus's Thrift service: groups of calls, and what they read, check and write."""
