"""What can go wrong with the team's server: one short tree, so that a caller catches what it means to."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teamlore_client._sync import Synced


class TeamloreError(Exception):
    """Something about the team's server or this laptop's copy of it is not as it must be."""

    synced: "Synced | None" = None
    """What a sync that ended with this has done all the same; None where it was no sync."""


class ServerUnreachable(TeamloreError):
    """No answer, or one that says to come back later; nothing is known to have changed there."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Why a service that did answer cannot serve the call now, such as DEPENDENCY_UNAVAILABLE; empty without an answer."""


class Refused(TeamloreError):
    """The server refused the call. `reason` is one of `teamlore.common.v1.ErrorReason` without its prefix."""

    def __init__(self, reason: str, message: str, field: str = "", permission: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        """The field that breaks its rule, for bad input."""
        self.permission = permission
        """The permission that the token lacks, with PERMISSION_DENIED."""
        self.undone = False
        """True when nothing of the call was done: the service itself said so, and no earlier try was left unanswered."""


class AnswerWrong(TeamloreError):
    """The server's answer breaks the contract; it was not applied."""


class FeedGap(AnswerWrong):
    """A page of the feed does not begin where the one before ended; it was not applied."""


class DigestMismatch(TeamloreError):
    """What was received here is not what the server has at the same seq."""


class Busy(TeamloreError):
    """Another process is syncing this project right now."""


def speaks_of_one_call(error: TeamloreError) -> bool:
    """Return whether an error leaves it open that another call is served: a server answered, and took the token."""
    if isinstance(error, Refused):
        return error.reason != "UNAUTHENTICATED" and not error.reason.startswith("CREDENTIAL_")
    return not isinstance(error, ServerUnreachable) or bool(error.reason)
