"""The shop's pages."""

from django.urls import path

from example_project.shop import views

app_name = "shop"
urlpatterns = [
    path("", views.index, name="index"),
    path("orders/", views.place, name="place"),
    path("orders/<str:order_id>/cancel/", views.ask_to_cancel, name="cancel"),
]
