"""The project of the admin's tests, with a database for each number of letters; they are in the environment."""

import json
import os

from tests.browser.desk import where
from tests.support import databases

STORES = "BENCH_STORES"
os.environ.setdefault(where.DATABASE, "{}")

from tests.browser.desk.settings import *  # noqa: E402, F403 - it reads the environment

DEBUG = False  # a connection in debug mode keeps every statement
ALLOWED_HOSTS = ["testserver"]
DATABASES = {"default": databases.sqlite(os.environ[where.USERS_FILE]), **json.loads(os.environ[STORES])}
