"""The async edge: synchronous code run aside, so that a loop can go on meanwhile.

asyncio is imported when something awaits: neither a supervisor nor a command nor most senders ever have a loop, and
with all that it needs it was a tenth of the time that `import everbeat` took.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


async def pause(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
