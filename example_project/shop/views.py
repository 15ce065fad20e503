"""The shop's pages: they write rows and publish tasks, and wait for nothing."""

from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from example_project.shop.checkout import place_order
from example_project.shop.forms import OrderForm
from example_project.shop.models import Order
from example_project.shop.tasks import cancel, ping, reindex

_SHOWN = 50


@require_GET
def index(request):
    """Show the newest orders, and the form for another."""
    return _page(request, OrderForm())


@require_POST
def place(request):
    """Place an order; its payment comes later."""
    form = OrderForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=400)
    order = place_order(**form.cleaned_data)
    reindex.delay(order.pk)
    ping.delay("orders_placed")
    return redirect("shop:index")


@require_POST
def ask_to_cancel(request, order_id):
    """Ask for an order to be cancelled; whether that comes in time, its status will tell."""
    cancel.delay(order_id=get_object_or_404(Order, pk=order_id).pk)
    return redirect("shop:index")


def _page(request, form, status=200):
    orders = Order.objects.select_related("customer", "shipment").order_by("-placed_at")[:_SHOWN]
    return render(request, "shop/index.html", {"form": form, "orders": orders}, status=status)
