"""Writes Transload's records to vLLM's log, and keeps tickets out of it."""

from __future__ import annotations

import logging
import re

from transload import Ticket

TICKET = re.compile(r"tl1\.[A-Za-z0-9_-]{1,4092}")
"""The text of a ticket, or the beginning of one that was cut off."""


def log_as_vllm_does() -> None:
    """Writes Transload's own records where vLLM writes its log."""
    ours, theirs = logging.getLogger("transload"), logging.getLogger("vllm")
    if not ours.handlers:
        ours.handlers, ours.propagate = theirs.handlers, theirs.propagate
        ours.setLevel(theirs.level)


def hide_tickets() -> None:
    """Replaces the texts of tickets in all log records of this process by their fingerprints.

    A ticket is a secret, and vLLM logs the parameters of requests, tickets among them: each request's with
    ``--enable-log-requests``, those of a whole step when the engine dies. No handler is ours to filter at, and an operator
    may have set up others; records are all made in one place.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "hides_tickets", False):
        return

    def make_without_tickets(*args, **kwargs) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:
            # The handler reports what is wrong with it.
            return record
        if TICKET.search(text):
            record.msg, record.args = TICKET.sub(lambda found: repr(Ticket(found[0])), text), ()
        return record

    make_without_tickets.hides_tickets = True
    logging.setLogRecordFactory(make_without_tickets)
