"""`manage.py send_again`: for a timer, every few minutes."""

from django.core.management.base import BaseCommand

from example_project.shop.checkout import send_again


class Command(BaseCommand):
    """Publish the tasks of orders that are not finished."""

    help = "Publish again the tasks of orders that are not finished; harmless for those that run."

    def add_arguments(self, parser):
        """Declare the options."""
        parser.add_argument("--after-seconds", type=float, default=900.0, help="since they were last sent (900)")

    def handle(self, *, after_seconds, **_options):
        """Send, and say which."""
        for order in send_again(after_seconds):
            self.stdout.write(order.pk)
