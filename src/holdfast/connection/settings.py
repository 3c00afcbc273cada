"""What a server object was told when it was made, as one value: to make another one like it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from holdfast import arguments
from holdfast.connection.address import Address
from holdfast.connection.credentials import Credentials, check
from holdfast.errors import InvalidArgument
from holdfast.job import Duration

PATIENCE_SECONDS: Final = 15.0

LEAST_SECONDS: Final = 1.0
"""What one step of a call may take even if patience is shorter: a busy server is not lost."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `Server` and `AsyncServer`, which see."""

    address: Address
    patience: Duration | None = None
    reply_within: Duration | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    client_name: str | None = None

    def __post_init__(self) -> None:
        check(self.credentials)
        if self.client_name is not None and not isinstance(self.client_name, str):
            raise InvalidArgument(
                f"client_name must be a str, not {type(self.client_name).__name__}"
            )

    @property
    def patience_seconds(self) -> float:
        """For how long a call is tried again."""
        patience = self.address.patience if self.patience is None else self.patience
        if patience is None:
            patience = PATIENCE_SECONDS
        return arguments.duration_ms("patience", patience, forever=True) / 1000

    @property
    def reply_seconds(self) -> float | None:
        """How long a reply is waited for, where somebody said so."""
        return arguments.seconds_or_none("reply_within", self.reply_within)
