"""Connections and the bytes that come and go over them."""
