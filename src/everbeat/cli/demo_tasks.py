"""The application of `everbeat demo`: quick tasks, slow ones that may be repeated, and one that must not be."""

import time

from everbeat import Everbeat, RetryPolicy

app = Everbeat("sqlite:///everbeat-demo.db")


@app.task(name="resize_image")
def resize_image(number: int) -> str:
    time.sleep(0.1)
    return f"image-{number}-small.jpg"


@app.task(name="render_video", retry=RetryPolicy(max_attempts=3))
def render_video(number: int, seconds: float) -> str:
    """May run again from the start, and says so with its retry policy."""
    time.sleep(seconds)
    return f"video-{number}.mp4"


@app.task(name="charge_card")
def charge_card(order: int, seconds: float) -> str:
    """When its process dies nobody knows whether the card was charged. No retry policy: one attempt."""
    time.sleep(seconds)
    return f"receipt-{order}"
