from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_safeguards", "0005_edit"),
    ]

    operations = [
        migrations.CreateModel(
            name="LetterTerm",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("namespace", models.CharField(max_length=100)),
                ("term", models.CharField(max_length=32)),
                ("letter_row", models.CharField(max_length=64)),
                ("last_failed_us", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "term of a dead letter",
                "verbose_name_plural": "terms of dead letters",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["namespace", "term", "last_failed_us", "letter_row"], name="sg_term_failed"),
                    models.Index(fields=["letter_row"], name="sg_term_letter"),
                ],
            },
        ),
        migrations.AddField(
            model_name="deadletter",
            name="terms_written",
            field=models.CharField(blank=True, db_default="", max_length=32),
        ),
    ]
