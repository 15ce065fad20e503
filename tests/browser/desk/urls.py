"""
The admin, and a way to log in for those who are no members of the staff.
"""

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls), path("accounts/login/", LoginView.as_view())]
