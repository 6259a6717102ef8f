"""What fails time and again, and is to be said once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outages"]

LOG = logging.getLogger("retrytemplate.control.switch")


@define(eq=False)
class Outages:
    """Logs what fails, and says nothing more of it until it has gone well again.

    :param name: of the switch, for the log.
    """

    name: str
    _said: set[str] = field(factory=set)

    def attempt(self, step: Callable[[], object], trouble: str) -> None:
        """Do something that others will do if this process cannot.

        :param trouble: what it means that it fails.
        """
        try:
            step()
        except Exception:
            if trouble not in self._said:
                self._said.add(trouble)
                LOG.warning("%s: %s", self.name, trouble, exc_info=True)
        else:
            self._said.discard(trouble)
