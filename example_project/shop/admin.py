"""Orders in the admin: to be read. What changes them is a task."""

from django.contrib import admin

from example_project.shop.models import Customer, Order, Payment, Shipment


class ReadOnly(admin.ModelAdmin):
    """Rows that nobody edits by hand."""

    def has_add_permission(self, request):
        """Nobody."""
        return False

    def has_change_permission(self, request, obj=None):
        """Nobody."""
        return False

    def has_delete_permission(self, request, obj=None):
        """Nobody."""
        return False


@admin.register(Customer)
class CustomerAdmin(ReadOnly):
    """Customers and their points."""

    list_display = ("email", "points")
    search_fields = ("email",)


@admin.register(Order)
class OrderAdmin(ReadOnly):
    """Orders, by status."""

    list_display = ("id", "customer", "amount_cents", "status", "placed_at")
    list_filter = ("status",)
    list_select_related = ("customer",)
    search_fields = ("id", "customer__email", "searchentry__text")


@admin.register(Payment)
class PaymentAdmin(ReadOnly):
    """Payments, by the gateway's number."""

    list_display = ("charge_id", "order", "amount_cents", "paid_at")
    search_fields = ("charge_id", "order__id")


@admin.register(Shipment)
class ShipmentAdmin(ReadOnly):
    """Parcels."""

    list_display = ("parcel", "order", "sent_at")
    search_fields = ("parcel", "order__id")
