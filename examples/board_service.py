"""A board in the browser, served by several worker processes that share its files; kill them while they save.

Every card is a file, `cards/<key>.json`, and `tally.json` says how many are in which column. What a worker changes is
one commit of both. A page shows the board live; its buttons kill workers in the midst of a save, and keep the board
busy until others give up. Whoever comes next finishes or undoes what a killed worker left, and the page shows it.

    pip install 'txfiles[examples]'
    python examples/board_service.py [directory] [--port 8000] [--workers 3]

Two settings are the environment's: BOARD_DURABILITY=process is enough for kills, "full" (the default) also survives
power loss; BOARD_PATIENCE is how many seconds a request waits for its turn before it is 503 (default: 1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.requests import Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from txfiles import AsyncDocuments
from txfiles.documents import Document
from txfiles.errors import LockTimeoutError

PAGE = Path(__file__).with_name("board.html")
COLUMNS = ("todo", "doing", "done")
Column = Literal["todo", "doing", "done"]


class Card(BaseModel):
    title: str = Field(min_length=1, max_length=80)
    column: Column = "todo"
    worker: int = 0  # who saved it last


class Tally(BaseModel):
    todo: int = 0
    doing: int = 0
    done: int = 0
    commits: int = 0

    def count(self, column: Column, change: int) -> None:
        setattr(self, column, getattr(self, column) + change)


class Move(BaseModel):
    to: Column


def application() -> FastAPI:
    place = Path(os.environ["BOARD_DIRECTORY"])
    board = AsyncDocuments(
        place / "board",
        {"tally": Tally(), "cards": Document(type=Card, file="cards/*.json")},
        durability=os.environ.get("BOARD_DURABILITY", "full"),  # type: ignore[arg-type]
        timeout=float(os.environ.get("BOARD_PATIENCE", "1")),
        create=True,
    )
    log = logging.FileHandler(place / "service.log")
    log.setFormatter(logging.Formatter("%(asctime)s worker %(process)d: %(message)s", "%H:%M:%S"))
    for name in ("txfiles", "board"):
        logging.getLogger(name).addHandler(log)
        logging.getLogger(name).setLevel(logging.INFO)
    told = logging.getLogger("board")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        report = await asyncio.to_thread(board.store.recover)
        done = (len(report.rolled_forward), len(report.rolled_back), len(report.removed))
        what = "finished %d commits, undid %d, cleared %d files" % done  # noqa: UP031
        told.info("started, %s", "nothing to recover" if report.clean else what)
        yield

    app = FastAPI(title="Board", lifespan=lifespan)

    @app.exception_handler(LockTimeoutError)
    async def busy(request: Request, error: LockTimeoutError) -> JSONResponse:
        """Nothing was begun, so the browser may just try again."""
        return JSONResponse({"detail": "the board is busy"}, 503, {"Retry-After": "1"})

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE)

    async def state() -> dict[str, Any]:
        version = board.store.state_version()  # before the rest is read: what comes in between is sent once more
        documents = await board.load()
        cards, tally = documents["cards"], documents["tally"]
        columns = Counter(card.column for card in cards.values())
        return {
            "version": version,
            "worker": os.getpid(),
            "cards": [{"key": key, **card.model_dump()} for key, card in cards.items()],
            "tally": tally.model_dump(),
            "agrees": all(columns[column] == getattr(tally, column) for column in COLUMNS),
            "log": (place / "service.log").read_text(encoding="utf-8").splitlines()[-12:],
        }

    @app.get("/board")
    async def look() -> dict[str, Any]:
        return await state()

    @app.get("/events")
    async def events() -> StreamingResponse:
        """Server-sent events: the board now, and again after every commit of whatever worker."""

        async def stream() -> AsyncIterator[str]:
            while True:
                now = await state()
                yield f"data: {json.dumps(now)}\n\n"
                while await board.store.async_wait_for_change(now["version"], timeout=10) == now["version"]:
                    yield ": still here\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @app.post("/cards", status_code=201)
    async def add(card: Card) -> dict[str, str]:
        key = uuid.uuid4().hex[:12]
        card.worker = os.getpid()
        async with board.edit() as d:
            await d["cards"].set(key, card)
            d["tally"].count(card.column, 1)
            d["tally"].commits += 1
        return {"key": key}

    @app.post("/cards/{key}/move", status_code=204)
    async def move(key: str, where: Move) -> None:
        async with board.edit() as d:
            card = await find(d["cards"], key)
            d["tally"].count(card.column, -1)
            d["tally"].count(where.to, 1)
            d["tally"].commits += 1
            card.column, card.worker = where.to, os.getpid()

    @app.delete("/cards/{key}", status_code=204)
    async def remove(key: str) -> None:
        async with board.edit() as d:
            card = await find(d["cards"], key)
            await d["cards"].delete(key)
            d["tally"].count(card.column, -1)
            d["tally"].commits += 1

    async def find(cards: Any, key: str) -> Card:
        try:
            card: Card | None = await cards.get(key)
        except ValueError:  # what cannot be a key
            card = None
        if card is None:
            raise HTTPException(404, "there is no such card")
        return card

    @app.post("/trouble/kill")
    async def kill() -> None:
        """Save all cards, over and over, until the kill comes: somewhere in the midst of a commit, most likely."""
        told.info("is going to be killed while it saves")
        threading.Timer(random.uniform(0.005, 0.1), os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            async with board.edit() as d:
                columns = Counter[str]()
                for key in await d["cards"].keys():
                    card = await d["cards"].get(key)
                    card.column, card.worker = random.choice(COLUMNS), os.getpid()
                    columns[card.column] += 1
                d["tally"] = Tally(**columns, commits=d["tally"].commits + 1)

    @app.post("/trouble/hold", status_code=204)
    async def hold(seconds: float = 3.0) -> None:
        """Keep the board busy: others wait for their turn, for as long as they have patience."""
        async with board.edit() as d:
            told.info("keeps the board busy for %.1f s", seconds)
            await asyncio.sleep(min(seconds, 10.0))
            d["tally"].commits += 1

    return app


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", nargs="?", help="where the board is (default: nowhere to stay)")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free (default: 8000)")
    parser.add_argument("--workers", type=int, default=3, help="how many processes (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["BOARD_DIRECTORY"] = str(Path(options.directory or temporary).absolute())
        uvicorn.run(
            "board_service:application",
            factory=True,
            port=options.port,
            workers=options.workers,
            access_log=False,
            timeout_graceful_shutdown=1,  # the streams of events have no end
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
