"""Start a worker in one terminal, run this file in another: it sends two tasks and waits for what they return."""

import time

from everbeat import Everbeat, RetryPolicy

app = Everbeat("sqlite:///jobs.db")


@app.task(retry=RetryPolicy(max_attempts=3))
def resize(picture: str, width: int = 800) -> str:
    time.sleep(1)
    return f"{picture} at {width} pixels"


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"


if __name__ == "__main__":
    resized, greeted = resize.enqueue("cat.jpg", width=320), greet.enqueue("Ada")
    print(resized.id, resized.status())
    print(resized.result(timeout=60), "/", greeted.result(timeout=60))
