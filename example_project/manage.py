"""Django's command line for the shop, from whatever directory."""

import os
import sys
from pathlib import Path


def main():
    """Run a command."""
    # The project is the package `example_project`: its parent belongs on the path, not the directory of this file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.config.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415  # needs the path

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
