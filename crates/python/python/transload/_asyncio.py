"""Lets asyncio await a `Completion`."""

import asyncio
from typing import Any

from ._transload import Completion


async def wait_for(completion: "Completion[Any]") -> Any:
    """Returns the result of a completion, or raises its exception. Cancelling the wait does not cancel what is waited for."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: "Completion[Any]") -> None:
        try:
            loop.call_soon_threadsafe(ended.set)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    completion.add_done_callback(tell)
    try:
        await ended.wait()
    finally:
        completion.remove_done_callback(tell)
    return completion.result(0)
