"""An author on a server of OpenAI's chat completions: has an idea, writes a task, mends it, and reviews it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from arcforge_core.contracts.chat import Message
from arcforge_core.errors import DataError
from arcforge_rl.configs.others import AgentConfig
from arcforge_rl.endpoints import Endpoint
from arcforge_rl.terminal.authoring.authors import Proposal, Writer
from arcforge_rl.terminal.authoring.pages.drawing import Unfit
from arcforge_rl.terminal.authoring.sources import TaskSource
from arcforge_rl.terminal.drafts import Draft

T = TypeVar("T", bound=BaseModel)


class Form(BaseModel):
    """The JSON object of a reply."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Idea(Form):
    """An idea for a task, or why there is none."""

    unsuitable: str
    idea: str


class WrittenFile(Form):
    """A file of the world."""

    path: str
    text: str


class WrittenTask(Form):
    """A task, as `WRITE` asks for it."""

    instruction: str
    files: list[WrittenFile]
    packages: list[str]
    setup: str
    solve: str
    cheats: list[str]
    results: list[str]
    check: str


class Review(Form):
    """Complaints about a task."""

    complaints: list[str]


ASK = """\
You write tasks for an agent that works in a shell (bash, python3) in the folder /app of a sandbox without network.
{material}
Have one idea for a task that can be verified by looking at files. It is number {number}; earlier ones were other
tasks. Reply with a JSON object: "idea", two or three sentences, and "unsuitable", empty, or why no task for a shell
can be made of this."""
WRITE = """\
Write the task. Reply with a JSON object of these fields:
- "instruction": all that the agent must know, with the absolute path of every result. It must not tell the result.
- "files": those of /app, as relative "path" and "text".
- "packages": names of Debian packages that it needs besides python3; usually none.
- "setup": a shell script that completes /app when the world is built; usually empty.
- "solve": a script of bash that does the task, run in /app. It computes the result and must not recite it.
- "cheats": at least two scripts of bash that look as if they did the task and miss its point.
- "results": absolute paths of the files that are judged.
- "check": a program of Python that ends with code 0 only if the results are right. It reads the files of the agent and
  must not run or import them.
The validator builds the world; your solution must pass the check, an untouched world and your cheats must fail it."""
MEND = "The task does not hold:\n{complaints}\nReply with the whole mended JSON object."
RUBRIC = """\
Review a task for an agent in a shell. It holds if
1. the instruction says everything that the check requires, and the check requires everything that it says;
2. a right solution of another kind passes too;
3. nothing in the world tells the result, and no shortcut passes;
4. it is clear, and a competent person can do it in the given world.
{task}
Reply with a JSON object: "complaints", a list of short sentences, empty if the task holds."""


class EndpointAuthor:
    """Asks a model.

    Args:
        config: where it is, and how it samples.

    Raises:
        ConfigError: the variable with the key is not set.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.name = config.model or str(config.url)
        Endpoint("author", config, None, "")  # the key is there

    def begin(self, source: TaskSource) -> Writer:
        """Returns a writer with a conversation of its own."""
        return _Conversation(self.config, source)


class _Conversation:
    def __init__(self, config: AgentConfig, source: TaskSource) -> None:
        self.source = source
        self._idea, self._task, self._review = (
            Endpoint("author", config, None, f"{source.route}/{source.key}/{part}", form.model_json_schema())
            for part, form in (("idea", Idea), ("task", WrittenTask), ("review", Review))
        )
        self._messages: list[Message] = []

    async def write(self, complaints: Sequence[str]) -> Proposal:
        if not self._messages:
            await self._begin()
        if complaints:
            self._messages.append(Message("user", MEND.format(complaints="\n".join(f"- {one}" for one in complaints))))
        reply = await self._task.reply(self._messages)
        self._messages.append(reply.message)
        return Proposal(self.source.topic, draft_of(reply.text))

    async def _begin(self) -> None:
        number = self.source.key.rpartition("/")[2] if self.source.route == "seeds" else "0"
        asked = [Message("user", ASK.format(material=material_of(self.source), number=number))]
        reply = await self._idea.reply(asked)
        if why := form_of(Idea, reply.text).unsuitable.strip():
            raise Unfit(f"unsuitable: {why[:200]}")
        self._messages = [*asked, reply.message, Message("user", WRITE)]

    async def review(self, draft: Draft) -> Sequence[str]:
        said = self._messages[-1].content
        reply = await self._review.reply([Message("user", RUBRIC.format(task=said))])
        try:
            return [one for one in form_of(Review, reply.text).complaints if one.strip()]
        except DataError:
            return ()  # a review that cannot be read refuses nothing


def material_of(source: TaskSource) -> str:
    """Returns what the author reads."""
    hard = f", of {source.difficulty} difficulty" if source.difficulty else ""
    about = "about this page" if source.pages else "like this one"
    return f"The task is {about}{hard}; its topic is {source.topic}:\n\n{source.title}\n\n{source.text[:8000]}\n"


def draft_of(text: str) -> Draft:
    """Reads a task that a model wrote.

    Raises:
        DataError: it is no such object, or a path comes twice.
    """
    task = form_of(WrittenTask, text)
    files = {one.path: one.text for one in task.files}
    if len(files) < len(task.files):
        raise DataError("files: a path comes twice")
    return Draft(
        task.instruction, files, (), task.solve, task.cheats, setup=task.setup, packages=task.packages,
        check=task.check, results=task.results,
    )  # fmt: skip


def form_of(form: type[T], text: str) -> T:
    """Returns the JSON object of a reply, which may be in a block of code.

    Raises:
        DataError: there is none, or a field is missing, unknown or of another type.
    """
    begin, end = text.find("{"), text.rfind("}")
    try:
        return form.model_validate_json(text[begin : end + 1])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the reply"
        raise DataError(f"{where}: {first['msg']}") from error
