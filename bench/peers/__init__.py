"""Peers, each measured through its own public API in an environment of its own. See `catalogue.py`."""
