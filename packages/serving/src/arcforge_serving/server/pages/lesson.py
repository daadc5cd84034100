"""``/page/lesson``: reinforcement learning of the served model, for the page."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.pages.page import HEADERS
from arcforge_serving.server.shared.errors import RESPONSES
from arcforge_serving.server.shared.lesson import Lesson, Status
from arcforge_serving.server.shared.state import Server

router = APIRouter(route_class=GuardedRoute, prefix="/page/lesson")
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'"
)
"""The report runs its own script, whose hash its own policy demands, without a right to this server's API."""


class LessonModel(BaseModel):
    """The state of the lesson.

    Attributes:
        status: of the last run.
        message: why it failed.
        taught: whether the server answers with the weights of the last run.
        share: of the run's budget that is used, 0 to 1.
        rewards: mean reward by step.
        heldout: (step, pass@1) on held-out tasks.
        report: whether the run's page is there.
    """

    status: Status
    message: str = ""
    taught: bool = False
    share: float = 0.0
    rewards: list[float] = []
    heldout: list[tuple[int, float]] = []
    report: bool = False


def offered(server: Server) -> Lesson:
    """Returns the server's lesson.

    Raises:
        HTTPException: 404 if it offers none.
    """
    if server.lesson is None:
        raise HTTPException(404, "this server offers no lesson; arcforge demo does")
    return server.lesson


def state_of(lesson: Lesson) -> LessonModel:
    """Returns the state to show."""
    return LessonModel(
        status=lesson.status,
        message=lesson.failure,
        taught=lesson.taught,
        report=not lesson.running and lesson.report() is not None,
        **lesson.progress(),
    )


@router.get("", responses=RESPONSES)
def watch(server: Server) -> LessonModel:
    """Says how far the lesson is."""
    return state_of(offered(server))


@router.post("", responses=RESPONSES)
def begin(server: Server) -> LessonModel:
    """Starts the lesson; 409 while one is in progress."""
    lesson = offered(server)
    if not lesson.start():
        raise HTTPException(409, "the lesson is in progress")
    return state_of(lesson)


@router.get("/report.html", include_in_schema=False)
@declare(Level.OPEN)
def report(server: Server) -> Response:
    """Gives the last run's report."""
    page = offered(server).report()
    if page is None:
        raise HTTPException(404, "no lesson has ended yet")
    return Response(page, media_type="text/html", headers={**HEADERS, "Content-Security-Policy": REPORT_POLICY})
