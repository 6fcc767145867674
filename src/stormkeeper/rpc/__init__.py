"""Thrift over sockets: the client and the server of a service, in frames of the binary protocol."""
