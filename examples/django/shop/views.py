from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from everbeat import TaskNotFound
from shop.models import Order
from shop.tasks import make_receipt


@csrf_exempt
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    """The order and the task are committed together, or neither is."""
    with transaction.atomic():
        new = Order.objects.create(item=request.POST["item"])
        receipt = make_receipt.options(connection=connection).enqueue(new.pk)
        if new.item == "nothing":
            transaction.set_rollback(True)
            return JsonResponse({"error": "nothing is not for sale"}, status=422)
    return JsonResponse({"order": new.pk, "task": receipt.id}, status=202)


def task(request: HttpRequest, task_id: str) -> JsonResponse:
    try:
        return JsonResponse({"status": make_receipt.handle(task_id).status()})
    except TaskNotFound:
        return JsonResponse({"error": f"there is no task {task_id}"}, status=404)
