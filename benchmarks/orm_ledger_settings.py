"""The smallest Django project whose database keeps the ledger; its address is in the environment."""

import os

from tests.support.databases import APP, postgres

DATABASE_URL = "BENCH_DATABASE_URL"
SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = [APP]
DATABASES = {"default": postgres(os.environ[DATABASE_URL])}
