"""The payment gateway, as the shop sees it: it charges whatever it is sent, and can be asked what it has charged."""

from django.conf import settings

from celery_safeguards import DidNotHappen, Happened
from example_project.gateway_client import GatewayClient

VERIFY_AFTER_SECONDS = settings.SHOP_GATEWAY_TIMEOUT_SECONDS + 0.5
"""A little more than one request to the gateway can live: what its sender could not await has landed by then."""


def gateway():
    """Return a client of the gateway."""
    return GatewayClient(settings.SHOP_GATEWAY_URL, timeout_seconds=settings.SHOP_GATEWAY_TIMEOUT_SECONDS)


def find_payment(order_id):
    """Ask the gateway whether an order was charged."""
    charges = gateway().charges(order_id)
    return Happened(charges[0]) if charges else DidNotHappen()


def is_paid(result, order_id, amount):
    """Say whether what the gateway answered is the payment that was asked for; None: nothing was to be paid."""
    return result is None or (result["order_id"], result["amount"]) == (order_id, amount)


def check_amount(amount):
    """Raise ValueError if this is no amount of money."""
    if not isinstance(amount, int) or amount <= 0:
        raise ValueError(f"amount={amount!r}: give a whole number of cents above 0")
