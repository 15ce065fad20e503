"""
The admin, another one beside it, and a way to log in for those who are no members of the staff.
"""

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.urls import path

second = admin.AdminSite(name="second")
for model, each in admin.site._registry.items():
    second.register(model, type(each))

urlpatterns = [
    path("admin/", admin.site.urls),
    path("second/", second.urls),
    path("accounts/login/", LoginView.as_view()),
]
