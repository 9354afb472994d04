"""The tools of the servers of the Python SDK and of FastMCP."""

import asyncio
import os
from pathlib import Path

waiting = 0
meeting = asyncio.Event()
folder = Path(os.environ["TEST_FOLDER"])


def register(tool):
    @tool()
    async def add(a: int, b: int) -> dict[str, int]:
        """Adds."""
        return {"sum": a + b}

    @tool()
    async def fail() -> str:
        """Fails."""
        raise ValueError("no such row")

    @tool()
    async def meet(name: str) -> str:
        """Meets: two calls must run at the same time."""
        global waiting
        waiting += 1
        if waiting == 2:
            meeting.set()
        await meeting.wait()
        return f"met {name}"

    @tool()
    async def wait() -> str:
        """Waits."""
        (folder / "waiting").touch()
        try:
            await asyncio.sleep(600)
        finally:
            (folder / "cancelled").touch()
        return "waited"
