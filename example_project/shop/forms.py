"""What a customer fills in."""

import uuid

from django import forms


def _draw_id():
    return uuid.uuid4().hex[:12]


class OrderForm(forms.Form):
    """One order. Its id comes with the page: a second click, or a browser that sends again, asks for the same order."""

    # A part of addresses: one with a slash would have none, and no page could show it.
    order_id = forms.SlugField(widget=forms.HiddenInput, initial=_draw_id, max_length=40)
    email = forms.EmailField()
    amount_cents = forms.IntegerField(min_value=1, max_value=1_000_000)
