"""An application whose import leaves a thread behind: it can not be forked."""

import threading

from basic import app

threading.Thread(target=threading.Event().wait, daemon=True, name="left-behind").start()

__all__ = ["app"]
