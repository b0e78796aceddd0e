"""The auth service: `python -m services.auth.main`."""

from dataclasses import dataclass

from teamlore.auth.v1 import access_pb2_grpc, auth_pb2_grpc

from kit.config import load_or_exit, setting
from kit.foundation import Foundation, Settings
from kit.identity import Authenticator
from kit.interceptor import Built
from kit.key_cache import KeyCache
from kit.serving import run
from services.auth import pages
from services.auth.access_handlers import AccessHandlers
from services.auth.access_store import AccessStore
from services.auth.handlers import AuthHandlers
from services.auth.keys import SEAL_NAME, Schedule
from services.auth.oidc import Issuer, SignIns
from services.auth.rotation import Rotation
from services.auth.store import QUERIES, Store
from services.auth.sweeping import Sweep
from services.auth.tokens import parse_service_hashes
from services.auth.usage import LastUsed


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of the auth service, whose key store seals the signing key."""

    service_token_hashes: str = setting("TEAMLORE_SERVICE_TOKEN_HASHES", "")
    """`sync=<sha256 hex of its token>,…`: the other services of this deployment."""
    key_rotation: float = setting(
        "TEAMLORE_KEY_ROTATION_SECONDS", 2_592_000.0, minimum=1, maximum=315_360_000
    )
    """From one signing key to the next."""
    key_lead: float = setting("TEAMLORE_KEY_LEAD_SECONDS", 300.0, minimum=0.1, maximum=86_400)
    """From publishing a signing key to its first use."""
    jwt_seconds: int = setting("TEAMLORE_JWT_SECONDS", 300, minimum=2, maximum=3600)
    """How long a JWT lasts, and so for how long callers go on while auth is away."""
    oidc_issuer: str = setting("TEAMLORE_OIDC_ISSUER", "")
    """The issuer, exactly as its tokens name it; empty where only person tokens start sessions."""
    oidc_audience: str = setting("TEAMLORE_OIDC_AUDIENCE", "")
    """The client id that people sign in with."""
    oidc_scopes: str = setting("TEAMLORE_OIDC_SCOPES", "openid email")
    oidc_algorithms: str = setting("TEAMLORE_OIDC_ALGORITHMS", "RS256,ES256,EdDSA")
    oidc_principal_claim: str = setting("TEAMLORE_OIDC_PRINCIPAL_CLAIM", "email")
    """Must be a claim that a person cannot change at will; `email` has to be verified and is read in lower case."""
    oidc_principal_prefix: str = setting("TEAMLORE_OIDC_PRINCIPAL_PREFIX", "user:")
    oidc_groups_claim: str = setting("TEAMLORE_OIDC_GROUPS_CLAIM", "")
    """The claim with a list of groups; empty takes none from the issuer."""
    oidc_group_prefix: str = setting("TEAMLORE_OIDC_GROUP_PREFIX", "team:")
    oidc_groups_seconds: float = setting(
        "TEAMLORE_OIDC_GROUPS_SECONDS", 2_592_000.0, minimum=900, maximum=31_622_400
    )
    """For how long the issuer's word about a person's groups counts without another sign-in."""
    retention_days: int = setting("TEAMLORE_RETENTION_DAYS", 400, minimum=31, maximum=36_500)
    """For how long ended tokens, counts of decisions and counts of stored records are kept."""

    def issuer(self) -> Issuer:
        """The issuer. Raises RuntimeError for settings that cannot be meant."""
        return Issuer(
            self.oidc_issuer,
            self.oidc_audience,
            tuple(self.oidc_scopes.split()),
            tuple(word.strip() for word in self.oidc_algorithms.split(",")),
            self.oidc_principal_claim,
            self.oidc_principal_prefix,
            self.oidc_groups_claim,
            self.oidc_group_prefix,
        )


async def build(config: Config, base: Foundation) -> Built:
    """Makes the first signing key where there is none, and gives what is served."""
    schedule = Schedule.checked(config.key_rotation, config.key_lead, config.key_refresh, config.jwt_seconds)
    store = Store(base.database)
    keys, used = Rotation(store, base.keys.secret(SEAL_NAME), schedule), LastUsed(store.touch_tokens)
    base.at_end(keys.stop)
    await keys.start(base.access)
    base.at_end(used.stop)
    used.start()
    sweep = Sweep(store, config.oidc_groups_seconds, config.retention_days)
    base.at_end(sweep.stop)
    sweep.start()
    services = parse_service_hashes(config.service_token_hashes)
    handlers = AuthHandlers(store, base.access, keys, services, SignIns(config.issuer()), used, config.jwt_seconds)
    page_tokens = pages.PageTokens(base.keys.secret(pages.SEAL_NAME))
    access = AccessHandlers(store, AccessStore(base.database), base.access, page_tokens)
    return Built(
        Authenticator(KeyCache(keys.public_keys, config.key_refresh), base.access, handlers.exchange),
        {
            "teamlore.auth.v1.AuthService": (auth_pb2_grpc.add_AuthServiceServicer_to_server, handlers),
            "teamlore.auth.v1.AccessService": (access_pb2_grpc.add_AccessServiceServicer_to_server, access),
        },
        judges_credentials=frozenset(
            ("teamlore.auth.v1.AuthService.ExchangeToken", "teamlore.auth.v1.AuthService.StartSession")
        ),
    )


if __name__ == "__main__":
    run("auth", load_or_exit(Config), QUERIES, build)
