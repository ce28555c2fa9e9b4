"""The tasks of the shop. `everbeat worker start shop.tasks:app` imports this file without `manage.py`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.apps import apps

if not apps.ready:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    django.setup()

from django.conf import settings
from django.db import close_old_connections

from everbeat import CurrentTask, Everbeat, RetryPolicy
from shop.models import Order

app = Everbeat(settings.DATABASE_URL)


@app.around_task
@contextmanager
def with_good_connections(task: CurrentTask) -> Iterator[None]:
    """A process runs many tasks: a connection that broke during one must not fail the next."""
    close_old_connections()
    yield
    close_old_connections()


@app.task(retry=RetryPolicy(max_attempts=5))
def make_receipt(number: int) -> str:
    order = Order.objects.get(pk=number)
    order.receipt = f"receipt of order {order.pk}: {order.item}"
    order.save(update_fields=["receipt"])
    return order.receipt
