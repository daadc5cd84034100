"""The pages for people, ``/``, ``/dashboard`` and ``/docs``: files of the wheel that load nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.openai.schemas import PageModel
from arcforge_serving.server.shared.errors import RESPONSES
from arcforge_serving.server.shared.state import Server

router = APIRouter(route_class=GuardedRoute)
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
SHARED = ("tokens.css", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")
"""Files of every page of the project."""
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",  # a picture that a model's answer names would tell its address who reads it
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # browsers that know it let no text become markup
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def contents() -> dict[str, bytes]:
    """Returns the files of the page by their names."""
    own, shared = files("arcforge_serving").joinpath("page"), files("arcforge_core.report")
    files_here = [*own.iterdir(), *own.joinpath("vendor").iterdir()]
    found = [file for file in files_here if file.name.rpartition(".")[2] in KINDS]
    return {file.name: file.read_bytes() for file in [*found, *(shared.joinpath(name) for name in SHARED)]}


def answer(request: Request, name: str) -> Response:
    """Returns a file of the page, or that the browser's copy is still the one."""
    if name not in contents():
        raise HTTPException(404, f"there is no {name[:100]!r}")
    content = contents()[name]
    headers = {**HEADERS, "ETag": f'"{sha256(content).hexdigest()[:32]}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)


@router.get("/", include_in_schema=False)
@declare(Level.OPEN)
async def index(request: Request) -> Response:
    """Shows the page; who needs a key enters it there."""
    return answer(request, "index.html")


@router.get("/dashboard", include_in_schema=False)
@declare(Level.OPEN)
async def dashboard(request: Request) -> Response:
    """Shows the page that draws ``/metrics``, whose key it asks for where there is one."""
    return answer(request, "dashboard.html")


@router.get("/docs", include_in_schema=False)
@router.get("/redoc", include_in_schema=False)
@declare(Level.OPEN)
async def docs(request: Request) -> Response:
    """Shows the page that draws ``/openapi.json``."""
    return answer(request, "docs.html")


@router.get("/page/model.json", responses=RESPONSES)
async def page_model(server: Server) -> PageModel:
    """Says what the page offers."""
    template = server.template
    return PageModel(
        name=server.name,
        max_model_len=server.longest,
        chat=template is not None,
        no_chat=server.no_template,
        thinks=template is not None and template.keeps_reasoning,
        suggestions=server.starters.suggestions,
        tools=list(server.starters.tools),
        lesson=server.lesson is not None,
        base=server.starters.base,
    )


@router.get("/page/{name}", include_in_schema=False)
@declare(Level.OPEN)
async def part(name: str, request: Request) -> Response:
    """Gives the page's scripts and styles."""
    return answer(request, name)
