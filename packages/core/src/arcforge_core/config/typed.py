"""Arguments that are no ``FIELD=VALUE`` of Hydra: read where the meaning is plain, otherwise refused with a correction.

Runs before Hydra reads the command line. Flags of other programs, positional arguments, fields without their section
and well-known names of other trainers and servers are refused with the field that was meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from arcforge_core.config.config_file import written
from arcforge_core.config.fields import Chosen, chosen_of, closest, paths
from arcforge_core.config.foreign import advice
from arcforge_core.config.help import groups_of
from arcforge_core.config.installed import AUTO
from arcforge_core.config.renamed import renamed
from arcforge_core.config.search_path import options
from arcforge_core.config.validate import type_words
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.plugins.loader import registry

FLAGS = {
    "-h", "--help", "--version", "-m", "--multirun", "-c", "--cfg", "-p", "--package", "-i", "--info", "-r", "--run",
    "-sc", "--shell-completion", "--resolve", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
    "--experimental-rerun", "--hydra-help",
}  # fmt: skip
VALUED = {"-c", "--cfg", "-p", "--package", "-i", "--info", "-sc", "-cp", "-cn", "-cd", "--config-path",
          "--config-name", "--config-dir"}  # fmt: skip
"""Flags that the next argument belongs to."""
PLACES = ("checkpoint", "init")
WHOLE = re.compile(r"[+-]?\d+(?:\.0*)?(?:[eE]\+?\d+)?|[+-]?\d*\.\d+[eE]\+?\d+")
PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)
"""A text that needs no quotes in Hydra's grammar."""
FOREIGN = re.compile(r"(?=.*[^\x00-\x7f])[^'\"\[\]{}(),=$\\\\]+")
"""A text in letters that Hydra's grammar has not, and without signs that mean something in it."""
ADVICE = "options are written FIELD=VALUE"
QUOTES = "a value with special characters needs two pairs of quotes, 'FIELD=\"VALUE\"'"


def understood(config_name: str, schema: type[Any], arguments: Sequence[str]) -> list[str]:
    """Returns the arguments, with whole floats for whole numbers and single values for lists written out.

    Raises:
        ArcforgeError: an argument is no option, or names a field that the command does not have.
    """
    line = _Line(config_name, schema, arguments)
    found: list[str] = []
    rest = iter(enumerate(arguments))
    for number, argument in rest:
        flag = argument.split("=")[0]
        if flag in FLAGS and argument.startswith("-"):
            found.append(argument)
            if flag in VALUED and "=" not in argument and number + 1 < len(arguments):
                found.append(next(rest)[1])
        elif argument.startswith("-"):
            raise ArcforgeError(line.foreign_flag(number))
        elif "=" not in argument and not argument.startswith("~"):
            raise ArcforgeError(line.positional(number))
        else:
            found.append(line.option(argument))
    return found


class _Line:
    """A command line: the command, its schema and its arguments."""

    def __init__(self, config_name: str, schema: type[Any], arguments: Sequence[str]) -> None:
        self.name, self.schema, self.arguments = config_name, schema, arguments
        self.groups = groups_of(config_name)
        self.chosen: Chosen = chosen_of(config_name, arguments)

    def closest(self, name: str, value: str = "") -> str | None:
        """Returns the field or group that a name means; see `fields.closest`."""
        return closest(self.name, self.schema, name, value, self.chosen)

    def following(self, number: int) -> str:
        """Returns the next argument if it can be a value, else an empty string."""
        following = self.arguments[number + 1 :][:1]
        return "".join(each for each in following if not each.startswith("-") and "=" not in each)

    def foreign_flag(self, number: int) -> str:
        """Explains ``--minutes=3`` and ``--minutes 3``."""
        name, _, value = self.arguments[number].lstrip("-").replace("-", "_").partition("=")
        value = value or self.following(number)
        if reason := advice(name, paths(self.schema)):
            return f"{self.arguments[number]}: {self.name} has no {name!r}; {reason}"
        meant = self.closest(name, value)
        hint = f"; did you mean {meant}={value or 'VALUE'}?" if meant else f"; {self.name} has no {name!r}"
        return f"{self.arguments[number]}: {ADVICE}{hint}"

    def positional(self, number: int) -> str:
        """Explains ``trainer.minutes 3``, ``mini`` and ``outputs/latest``."""
        argument = self.arguments[number]
        meant = self._meant(argument, self.following(number))
        return f"cannot read {argument!r}: {ADVICE} or GROUP=OPTION; {f'did you mean {meant}?' if meant else QUOTES}"

    def _meant(self, argument: str, value: str) -> str | None:
        """Returns the option that a positional argument means, as it should be written."""
        known = paths(self.schema)
        if argument in known or argument in self.groups:
            return f"{argument}={value or 'VALUE'}"
        if "url" in known and re.match(r"https?://", argument):
            return f"url={argument}"
        place = next((field for field in PLACES if field in known), None)
        if place and re.fullmatch(r"\S*/\S*", argument):
            return f"{place}={argument}"
        if Path(argument).exists():
            if "files" in known:
                return f"files=[{argument}]"
            if "data.paths" in known:
                return f"data=files data.paths=[{argument}]"
        by_option = {option: group for group in reversed(list(self.groups)) for option in options(group)}
        if match := difflib.get_close_matches(argument, list(by_option), n=1, cutoff=0.75):
            return f"{by_option[match[0]]}={match[0]}"
        if meant := self.closest(argument):
            return f"{meant}={value or 'VALUE'}"
        return f"checkpoint={argument}" if "checkpoint" in known and PLAIN.fullmatch(argument) else None

    def option(self, argument: str) -> str:
        """Returns an override, its value in the form of the field's type.

        Raises:
            ArcforgeError: the command has no such section, group or field.
        """
        key, _, value = argument.partition("=")
        name = key.lstrip("+~").split("@")[0]
        if not name:
            raise ArcforgeError(f"cannot read {argument!r}: {ADVICE}")
        known = paths(self.schema)
        if not renamed(name):
            self._check_known(name, added=key.startswith(("+", "~")))
        if value == AUTO and AUTO not in options(name) and (default := self.groups.get(name)):
            return f"{key}={default}"
        if name not in known or not value:
            return argument
        return f"{key}={_formed(name, known[name], value)}"

    def _check_known(self, name: str, added: bool) -> None:
        """Refuses a name outside the command's sections, or one of a section that only another section has."""
        known = paths(self.schema)
        top, _, inner = name.partition(".")
        parents = [name[: at.start()] for at in re.finditer(r"\.", name)]
        if (
            name in self.groups
            or name.endswith(".name")
            or any(get_origin(known.get(parent)) is dict for parent in parents)
        ):
            return  # Hydra and the schemas check these
        near = difflib.get_close_matches(name, [path for path in known if path.startswith(f"{top}.")], n=1, cutoff=0.8)
        if near and near[0] not in paths(self.schema, self.chosen):
            field = near[0].removeprefix(f"{top}.")
            owners = [c.name for c in registry() if c.kind == top and field in get_type_hints(c.load_schema())]
            text = f"unknown field {name}: {top}={dict(self.chosen)[top]} has no {inner!r}"
            more = [f"{len(owners) - 3} more"] if len(owners) > 4 else []
            those = f"{top}={' or '.join(owners[:3] + more if more else owners)}"
            raise ArcforgeError(
                f"{text}; {those} has" if name == near[0] else f"{text}; did you mean {near[0]!r} of {those}?"
            )
        if name in known:
            return
        roots = {path.split(".")[0] for path in known} | set(self.groups) | {"hydra", "stages"}
        if top not in roots and not added:
            meant = self.closest(name)
            accepted = ", ".join(sorted(roots - {"hydra", "stages"}))
            hint = advice(name, known) or (f"did you mean {meant!r}?" if meant else f"it has {accepted}")
            raise ArcforgeError(f"unknown field {name}: {self.schema.__name__} has no {top!r}; {hint}")
        if not inner or near or not any(path.startswith(f"{top}.") for path in known):
            return
        other = self.closest(name)
        if other and not other.startswith(f"{top}.") and not added:
            raise ArcforgeError(f"unknown field {name}; did you mean {other!r}?")


def _formed(name: str, hint: Any, value: str) -> str:
    """Returns a value as its type wants it: ``1e3`` as 1000 for int, ``a`` as [a] for a list, ``ä`` in quotes."""
    parts = [part for part in get_args(hint) if part is not NoneType] if get_origin(hint) is UnionType else [hint]
    if parts == [int] and WHOLE.fullmatch(value) and not value.lstrip("+-").isdigit() and float(value).is_integer():
        return str(int(float(value)))
    if len(parts) == 1 and get_origin(parts[0]) is list:
        if value.startswith("{"):
            raise ConfigError(name, value, f"must be {type_words(parts[0])}")
        if not value.startswith(("[", "$", "'", '"')) and value != "null" and "," not in value:
            return f"[{value if PLAIN.fullmatch(value) else written(value)}]"
        if value.startswith("[") and value.endswith("]"):
            each = [part.strip() for part in _split(value[1:-1])]
            options_too = get_args(parts[0]) == (str,)
            return f"[{','.join(_quoted(part, options_too) for part in each)}]"
    if parts == [str] and FOREIGN.fullmatch(value):
        return written(value)
    return value


def _split(text: str) -> list[str]:
    """Returns the entries of a list, which are between commas outside of quotes and brackets."""
    entries, begun, open_brackets, quote = [], 0, 0, ""
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and text[place - 1] != "\\" else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "[{(":
            open_brackets += 1
        elif sign in "]})":
            open_brackets -= 1
        elif sign == "," and not open_brackets:
            entries.append(text[begun:place])
            begun = place + 1
    return [*entries, text[begun:]]


def _quoted(entry: str, options_too: bool) -> str:
    """Returns an entry of a list, in quotes if Hydra's grammar needs them: foreign letters, and options of another
    command, ``NAME=VALUE``, where texts are wanted."""
    option = options_too and "=" in entry and not entry.startswith(("'", '"', "$"))
    return written(entry) if option or FOREIGN.fullmatch(entry) else entry
