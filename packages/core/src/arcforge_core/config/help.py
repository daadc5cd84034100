"""The text of ``--help``: groups with their options, the provider of each, and further commands."""

from __future__ import annotations

import yaml
from omegaconf import MISSING

from arcforge_core.config.installed import default_of
from arcforge_core.config.search_path import first_comment, presets, sources
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry

SHOWN = 60
"""Options of a group that the help lists at most."""
USAGE = """\
Usage: {script} [GROUP=OPTION ...] [FIELD=VALUE ...]
"""

MORE = """\
More:
  {script} --cfg job                     the whole configuration that would run; -p SECTION shows a part
  {script} --info defaults-tree          the source of each part
  {script} -m GROUP=OPTION,OPTION        a sweep: one job per combination, compared on one page
  eval "$({script} -sc install=bash)"    Tab completion in this shell (also zsh, fish)
  {script} --help FIELD                  a field, a section or a group: type, default, meaning
  {script} --config FILE                 the fields of a YAML file, e.g. a run's config.yaml, before those typed
Fields of every section and component are listed in docs/config.md.
"""


def render_help(config_name: str, usage: str = USAGE, more: str = MORE) -> str:
    """Returns the help of a job's command.

    Raises:
        ConfigError: no installed package has the primary configuration.
    """
    text = _primary(config_name)
    script = registry().job(config_name).script
    blocks = [f"{script}: {first_comment(text)}.\n", usage.format(script=script)]
    for group, default in groups_of(config_name).items():
        lines = option_lines(group)
        if lines:
            note = {None: "", MISSING: " (to be chosen)"}.get(default, f" (default {default})")
            blocks.append("\n".join([f"{group}{note}", *lines, ""]))
    blocks.append(more.format(script=script))
    return "\n".join(blocks).rstrip()


def groups_of(config_name: str) -> dict[str, str | None]:
    """Returns the groups that a command line may choose from, with their defaults among the installed options.

    Raises:
        ConfigError: no installed package has the primary configuration.
    """
    return {group: default_of(written) for group, written in written_groups(config_name).items()}


def written_groups(config_name: str) -> dict[str, str | None]:
    """Returns the groups with their defaults as the primary configuration has them; see `groups_of`."""
    return _groups(_primary(config_name))


def _primary(config_name: str) -> str:
    """Returns the text of the command's primary YAML file."""
    for root in (source.root for source in sources()):
        if root and (file := root / f"{config_name}.yaml").is_file():
            return file.read_text(encoding="utf-8")
    raise ConfigError("config", config_name, "no installed package has this primary configuration")


def _groups(text: str) -> dict[str, str | None]:
    """Returns group -> default option of a primary configuration, in its order."""
    entries = [entry for entry in yaml.safe_load(text)["defaults"] if isinstance(entry, dict)]
    pairs = [pair for entry in entries for pair in entry.items()]
    return {group: default for group, default in pairs if not group.startswith("override ")}


def option_lines(group: str) -> list[str]:
    """Returns one line per option of a group, components and presets alike; a long list is cut."""
    found = [(c.name, c.summary, c.distribution) for c in registry() if c.kind == group]
    found += [(p.name, p.summary, p.provider) for p in presets() if p.group == group]
    width = max((len(name) for name, _, _ in sorted(found)[:SHOWN]), default=0)
    lines = [f"  {name:<{width}}  {summary}  [{owner}]" for name, summary, owner in sorted(found)]
    hidden = len(lines) - SHOWN
    return lines if hidden <= 0 else [*lines[:SHOWN], f"  ... and {hidden} more: arcforge-plugins lists them"]
