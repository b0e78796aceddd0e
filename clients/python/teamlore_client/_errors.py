"""What can go wrong with the team's server: one short tree, so that a caller catches what it means to."""


class TeamloreError(Exception):
    """Something about the team's server or this laptop's copy of it is not as it must be."""


class ServerUnreachable(TeamloreError):
    """No answer, or one that says to come back later; nothing is known to have changed there."""


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
