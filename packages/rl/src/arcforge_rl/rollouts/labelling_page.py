"""The page of ``arcforge-env label``, for this machine alone: one item, its questions, no word about who wrote it."""

from __future__ import annotations

import secrets
import socket
from html import escape
from urllib.parse import parse_qs

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.report.html import card
from arcforge_core.report.page import Page, Section
from arcforge_rl.rewards.judge.labels import FIRST, SECOND, TIE, Labelling

HOST = "127.0.0.1"
SHOWN = {FIRST: "reply 1", SECOND: "reply 2", TIE: "equal"}
MOST_BYTES = 100_000
SECRET, ITEM = "of-this-start", "item-key"
"""Fields of the form that are no question: names of criteria have no hyphen."""
STYLE = """
.replies { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
.replies pre, .asked { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
fieldset { border: 0; padding: 0; margin: 0 0 1rem; }
fieldset label { margin-right: 1.5rem; }
"""


def app_of(desk: Labelling) -> FastAPI:
    """Returns the application: ``GET /`` shows the next item, ``POST /`` takes the answers about it.

    Only a form of this application's own page is answered: it has a secret of this start.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    secret = secrets.token_urlsafe(16)

    @app.get("/")
    async def show() -> HTMLResponse:
        return HTMLResponse(page_of(desk, secret).render(), headers={"Cache-Control": "no-store"})

    @app.post("/")
    async def take(request: Request) -> Response:
        body = await request.body()
        if len(body) > MOST_BYTES:
            return Response("too long", 413)
        fields = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if not secrets.compare_digest(fields.get(SECRET, "").encode(), secret.encode()):
            return Response("this form is of another start: load the page again", 403)
        item = next((one for one in desk.left if one.key == fields.get(ITEM)), None)
        if item is not None:  # else it was judged already: a form sent twice
            answers = {}
            for name, (_, accepted) in desk.questions().items():
                if fields.get(name) not in accepted:
                    return Response(f"{name}: must be one of {', '.join(accepted)}", 422)
                answers[name] = fields[name]
            desk.judge(item, answers)
        return RedirectResponse("/", 303)

    return app


def page_of(desk: Labelling, secret: str) -> Page:
    """Returns the page of the next item, or of the end."""
    total = Section("", card("judged", f"{desk.done} of {len(desk.items)}"), headline=True)
    title = f"Labels of {desk.labeller}"
    if not desk.left:
        ended = Section("All is judged", "<p>Every judgement is in the file. Ctrl-C ends the command.</p>")
        return Page("labels", title, [total, ended], style=STYLE)
    item = desk.left[0]
    heads = ["Reply 1", "Reply 2"] if desk.rubric is None else ["Reply"]
    replies = "".join(
        f"<div><h3>{head}</h3><pre>{escape(reply)}</pre></div>" for head, reply in zip(heads, item.replies, strict=True)
    )
    asked = "".join(_question(name, question, accepted) for name, (question, accepted) in desk.questions().items())
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{value}">' for name, value in ((SECRET, secret), (ITEM, item.key))
    )
    form = f'<form method="post" action="/">{hidden}{asked}<button type="submit">Keep</button></form>'
    sections = [
        total,
        Section("Prompt", f'<p class="asked">{escape(item.prompt)}</p>'),
        Section("Replies", f'<div class="replies">{replies}</div>'),
        Section("Judgement", form),
    ]
    return Page("labels", title, sections, style=STYLE)


def _question(name: str, question: str, accepted: tuple[str, ...]) -> str:
    choices = "".join(_choice(name, answer) for answer in accepted)
    return f"<fieldset><legend>{escape(question)}</legend>{choices}</fieldset>"


def _choice(name: str, answer: str) -> str:
    shown, value = escape(SHOWN.get(answer, answer)), escape(answer, quote=True)
    return f'<label><input type="radio" name="{escape(name)}" value="{value}" required> {shown}</label>'


def serve(desk: Labelling, port: int) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise ConfigError("port", port, f"cannot be listened on: {error.strerror}") from error
        say(f"judge at http://{HOST}:{listener.getsockname()[1]}; Ctrl-C ends")
        uvicorn.Server(uvicorn.Config(app_of(desk), log_level="warning")).run(sockets=[listener])
