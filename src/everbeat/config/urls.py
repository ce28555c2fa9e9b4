"""URLs and paths of stores: what is wrong with one, and how it is shown. A password is masked before it is shown."""

import os
import re
from pathlib import Path

from everbeat.secrecy import MASK, masked

SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
LAST_PORT = 65535
ENCODED = "Special characters of a name or a password must be percent-encoded: @ as %40, / as %2F, % as %25, & as %26"
_BEHIND_USER = re.compile(r"(?<=://)([^:/@?#%]*).*", re.DOTALL)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_USER_SECRET = re.compile(r":.*@", re.DOTALL)
_SETTING = re.compile(r"(password\s*=).*", re.DOTALL | re.IGNORECASE)
_WITH_DRIVER = re.compile(r"(postgres(?:ql)?|sqlite)\+\w+://")
_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]*)(?::(.*))?")


def problem(url: str) -> str | None:
    """sqlite:///relative, sqlite:////absolute or postgresql://..."""
    if url.startswith(POSTGRES):
        return postgres_problem(url)
    if not url.startswith(SQLITE):
        return _driver_problem(url) or (
            f"{_no_url(url)!r} is not a store; use sqlite:///relative/path.db, sqlite:////absolute/path.db "
            "or postgresql://..."
        )
    if "?" in url:
        return "options can not be given in a sqlite URL; use SQLiteConfig(path, ...) or the settings of [broker]"
    return path_problem(url.removeprefix(SQLITE))


def postgres_problem(url: object) -> str | None:
    if not isinstance(url, str) or not url.startswith(POSTGRES):
        named = _driver_problem(url) if isinstance(url, str) else None
        shown = _no_url(url) if isinstance(url, str) else url
        return named or f"database_url must start with postgresql://, not {shown!r}"
    hosts, database, parameters = _parts(url)
    if _BAD_ESCAPE.search(url):
        wrong = "there is a % that begins no escape"
    elif "@" in hosts or "@" in database:
        wrong = "there is more than one @, or a / before it"
    elif any(one.count("=") != 1 for one in parameters.removesuffix("&").split("&") if parameters):
        wrong = "its parameters must be name=value, with & between them"
    else:
        wrong = next(filter(None, map(_host_problem, hosts.split(","))), "")
    # Where the password ends is not known here: all that follows the user may be part of it.
    # At the end: whoever masks passwords in the whole message takes what follows a URL for a part of it.
    shown = _BEHIND_USER.sub(rf"\1{MASK}", url, count=1)
    return f"database_url can not be read: {wrong}. {ENCODED}. It is {shown!r}" if wrong else None


def _driver_problem(url: str) -> str | None:
    """SQLAlchemy's URLs name a driver."""
    found = _WITH_DRIVER.match(url)
    return f"the URL of a store names no driver: begin it with {found[1]}://, not {found[0]}" if found else None


def _no_url(text: str) -> str:
    """What may have been meant as one: a password is behind the first colon, if not where a URL has it."""
    shown = _SETTING.sub(rf"\1{MASK}", masked(text))
    return shown if MASK in shown else _USER_SECRET.sub(f":{MASK}@", shown)


def _parts(url: str) -> tuple[str, str, str]:
    """Hosts, database and parameters, as the driver finds them: user and password end at the first @ before any /."""
    rest = url.partition("://")[2]
    user, at, _ = rest.partition("/")[0].partition("@")
    place, _, parameters = (rest[len(user + at) :] if at else rest).partition("?")
    hosts, _, database = place.partition("/")
    return hosts, database, parameters


def _host_problem(host: str) -> str | None:
    read = _HOST.fullmatch(host)
    if read is None or ":" in (read[2] or ""):
        return "an IPv6 address is written in brackets, as [::1]"
    port = read[2] or "5432"
    if not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= LAST_PORT):
        return f"the port of {read[1]!r} must be a number from 1 to {LAST_PORT}"
    return None


def path_problem(path: object) -> str | None:
    if not isinstance(path, str | os.PathLike):
        return f"path must be a path, not {path!r}"
    text = os.fspath(path)
    if not isinstance(text, str) or not _may_be_name(text):
        return f"path {path!r} does not name a file"
    if ":memory:" in text or text.startswith("file:"):
        return "a database in memory is private to one connection and lost with it; give the path of a file"
    if text.endswith("/") or text.startswith(("sqlite:", *POSTGRES)):
        return f"path {text!r} does not name a file; a URL goes to Everbeat(url)"
    try:
        absolute(path)
    except FileNotFoundError:
        return f"path {text!r} can not be found from here: the working directory was removed"
    except RuntimeError as error:  # of ~somebody
        return f"path {text!r} does not name a file: {error}"
    return None


def _may_be_name(text: str) -> bool:
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False
    return bool(name) and b"\0" not in name


def absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))
