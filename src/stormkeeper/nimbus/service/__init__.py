"""Nimbus's Thrift service: groups of calls, with checks, views and pages."""
