"""Runs `python ...` with a low limit of open files, as a container or a service may have."""

import os
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
