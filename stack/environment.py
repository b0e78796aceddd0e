"""What of a person's environment reaches the processes of a stack: what any process needs, and a service's settings.

The same shell may hold a person's own TEAMLORE_TOKEN, which is no service's business and which services refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_NEEDED = re.compile(
    r"PATH|LANG|LANGUAGE|LC_\w+|TZ|HOME|USER|LOGNAME|TMPDIR|LD_LIBRARY_PATH|XDG_\w+|(SSL_CERT|GRPC|OTEL|HF)_\w+"
    r"|(?i:(http|https|grpc|all|no)_proxy)"
)
_COMMON = (
    "TEAMLORE_CALLS_PER_MINUTE",
    "TEAMLORE_PUBLIC_CALLS_PER_MINUTE",
    "TEAMLORE_STREAMS_PER_PRINCIPAL",
    "TEAMLORE_TRANSACTION_SECONDS",
    "TEAMLORE_KEY_REFRESH_SECONDS",
)
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "auth": (
        *_COMMON,
        "TEAMLORE_KEY_ROTATION_SECONDS",
        "TEAMLORE_KEY_LEAD_SECONDS",
        "TEAMLORE_JWT_SECONDS",
        "TEAMLORE_OIDC_ISSUER",
        "TEAMLORE_OIDC_AUDIENCE",
        "TEAMLORE_OIDC_SCOPES",
        "TEAMLORE_OIDC_ALGORITHMS",
        "TEAMLORE_OIDC_PRINCIPAL_CLAIM",
        "TEAMLORE_OIDC_PRINCIPAL_PREFIX",
        "TEAMLORE_OIDC_GROUPS_CLAIM",
        "TEAMLORE_OIDC_GROUP_PREFIX",
        "TEAMLORE_OIDC_GROUPS_SECONDS",
        "TEAMLORE_RETENTION_DAYS",
    ),
    "sync": (
        *_COMMON,
        "BANK_CREATION",
        "TEAMLORE_SECRETS_BARRIER",
        "TEAMLORE_PUSHES_PER_MINUTE",
        "TEAMLORE_RECORDS_PER_DAY",
    ),
    "feed": _COMMON,
    "compliance": (
        *_COMMON,
        "TEAMLORE_KEY_BACKUP_DAYS",
    ),
    "index": (
        *_COMMON,
        "EMBED_MODEL",
        "TEAMLORE_EMBED_THREADS",
    ),
}
"""By service: the settings that a person may give it through the stack. The others the stack gives itself."""


def needed(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that any process needs."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if _NEEDED.fullmatch(name)}


def chosen(service: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of `service` that `environ` holds."""
    return {name: environ[name] for name in SETTINGS.get(service, ()) if name in environ}
