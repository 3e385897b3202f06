"""Headings in the help of a command with many options."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

from typer.models import OptionInfo

Command = TypeVar("Command", bound=Callable[..., Any])


def in_panels(layout: Mapping[str, Sequence[str]]) -> Callable[[Command], Command]:
    """Show the options of a command under headings; `layout` has the parameters under each.

    The layout stands here and not at the options, as other commands show some of them, too.
    Raises LookupError for a name that is no option of the command.
    """

    def apply(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        for panel, parameters in layout.items():
            for name in parameters:
                hints[name] = _in_panel(hints[name], panel)
        command.__annotations__ = hints
        return command

    return apply


def _in_panel(annotation: Any, panel: str) -> Any:
    (option,) = (part for part in annotation.__metadata__ if isinstance(part, OptionInfo))
    shown: OptionInfo = copy.copy(option)
    shown.rich_help_panel = panel
    return Annotated[annotation.__origin__, shown]
