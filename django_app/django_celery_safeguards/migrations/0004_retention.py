from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_safeguards", "0003_desk"),
    ]

    operations = [
        migrations.AddField(
            model_name="deadletter",
            name="over_us",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["namespace", "state", "over_us", "id"], name="sg_letter_over"),
        ),
    ]
