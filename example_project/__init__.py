"""
A Django project that takes payments and sends parcels once: what `celery_safeguards` looks like in use.

    config/      settings, Celery app, URLs
    shop/        orders: models with the last fences, guarded tasks, pages, admin
    gateway*.py  the payment gateway that the shop charges: a process of its own that forgives nothing
    demo/        breaks the shop, and counts what became of the money: `make demo`

    python -m example_project.gateway --port 8080            the gateway
    python example_project/manage.py migrate                 tables, in SQLite unless SHOP_DATABASE_URL says otherwise
    celery -A example_project.config safeguards store init   once, before the first worker
    celery -A example_project.config worker                  needs a Redis as broker, see SHOP_BROKER_URL
    python example_project/manage.py runserver               place an order at http://127.0.0.1:8000
"""
