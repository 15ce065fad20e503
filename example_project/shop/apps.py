"""The app as Django finds it."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Orders, payments and shipments."""

    name = "example_project.shop"
    label = "shop"
