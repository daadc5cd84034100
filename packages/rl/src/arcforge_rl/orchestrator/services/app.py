"""A task service over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from arcforge_core.contracts.environment import Environment
from arcforge_rl.orchestrator.services.program import Program


def app_of(environment: Environment) -> FastAPI:
    """Returns the application of a service: ``POST /`` with a request, answered with JSON."""
    app, program = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), Program(environment)

    @app.post("/")
    async def answer(request: Request) -> dict[str, Any]:
        return await program.answer(await request.json())

    return app
