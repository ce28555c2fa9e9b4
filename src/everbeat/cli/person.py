"""Who gives the order: the operating system's name for the user, as it stands in every history."""

import os
import pwd


def actor() -> str:
    """`cli/alice`. By the user id, not by the environment, which anybody can set."""
    try:
        return f"cli/{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # a container often runs under a number that has no name
        return f"cli/{os.getuid()}"
