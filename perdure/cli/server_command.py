"""`perdure server`: the embedded server and its UI by themselves; `perdure server stop`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import typer

from perdure.cli.console import emit, say
from perdure.cli.options import examples

if TYPE_CHECKING:
    from perdure.config import Settings

LOOK_SECONDS = 0.5
"""How often the server is looked after."""

server_app = typer.Typer(
    help="Run the embedded server and its UI by themselves, or stop them.",
    invoke_without_command=True,
    epilog=examples(
        ("perdure server", "server and UI, until Ctrl-C"),
        ("perdure server stop", "end it, with the workers that --detach left"),
    ),
)


@server_app.callback()
def server(context: typer.Context) -> None:
    """Run the embedded server and its UI in the foreground, until Ctrl-C.

    Other commands join it. It ends with its last user, so runs that use it go on after Ctrl-C.
    """
    if context.invoked_subcommand is None:
        from perdure.config import Settings

        asyncio.run(_serve(Settings.from_env()))


@server_app.command("stop", epilog=examples(("perdure server stop", "end workers and server")))
def stop() -> None:
    """End the embedded server, and the workers that use it.

    Suites that are under way stay open; the command that ran them goes on with them.
    """
    from perdure.config import Settings
    from perdure.server import stop as stop_server

    state = Settings.from_env().state
    if asyncio.run(stop_server(state)):
        say(f"stopped the embedded server of {state.path}")
    else:
        say(f"no embedded server runs in {state.path}")


async def _serve(settings: Settings) -> None:
    from perdure.cli.signals import asked_to_end
    from perdure.config import temporal_configured
    from perdure.server import ServerStopped, embedded_server, users

    if temporal_configured(settings.temporal_env):
        say(
            "note: Temporal's own settings name a service, and other commands use that one; "
            "unset TEMPORAL_ADDRESS to have them use this server"
        )
    async with (
        asked_to_end(_leave_at_once) as asked,
        embedded_server(settings, role="server") as server,
    ):
        emit(f"address  {server.address}")
        emit(f"UI       {server.ui_url}")
        emit(f"state    {settings.state.path}")
        say("Ctrl-C ends it")
        try:
            while not await asked.within(LOOK_SECONDS):
                if await server.restart_if_dead():
                    say(f"the server had died and was started again: {server.address}")
        except ServerStopped:
            say("the server was stopped")
            return
    others = [user for user in users(settings.state) if user.pid != os.getpid()]
    if others:
        named = ", ".join(f"{user.role} {user.pid}" for user in others)
        say(f"the server goes on for its other users: {named}")


def _leave_at_once(number: signal.Signals) -> None:
    os._exit(130)
