"""An application whose import leaves a connection open: it can not be forked."""

import socket

from basic import app

CONNECTION = socket.socketpair()

__all__ = ["app"]
