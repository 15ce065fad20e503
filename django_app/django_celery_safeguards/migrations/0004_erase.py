from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_safeguards", "0003_desk"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="deadletter",
            options={
                "default_permissions": ("view",),
                "permissions": (
                    ("view_payload_deadletter", "Can view arguments, headers, errors and results of dead letters"),
                    ("replay_deadletter", "Can replay dead letter"),
                    ("discard_deadletter", "Can discard dead letter"),
                    ("resolve_deadletter", "Can say whether a dead letter's work has happened"),
                    ("edit_deadletter", "Can send an edited copy of a dead letter"),
                    ("archive_deadletter", "Can archive and restore dead letter"),
                    ("erase_deadletter", "Can erase one person's data from dead letters"),
                ),
                "verbose_name": "dead letter",
            },
        ),
    ]
