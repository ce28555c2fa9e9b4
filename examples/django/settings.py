"""The least that Django needs. Everbeat keeps its tables in the same database: that is what one transaction needs."""

import os
from urllib.parse import unquote, urlsplit

DATABASE_URL = os.environ["EVERBEAT_DATABASE_URL"]

_url = urlsplit(DATABASE_URL)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path[1:],
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": _url.hostname,
        "PORT": _url.port,
    }
}
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for trying it")
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
