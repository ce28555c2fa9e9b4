from django.urls import path

from shop import views

urlpatterns = [path("orders", views.order), path("tasks/<str:task_id>", views.task)]
