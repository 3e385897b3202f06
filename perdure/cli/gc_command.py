"""`perdure gc`: collect stored values that no run needs any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.console import emit, emit_json
from perdure.cli.options import JsonOption

if TYPE_CHECKING:
    from perdure.gc import GcReport


def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; without it, nothing is touched.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say which stored values no run needs any more; --delete removes them.

    Values above 128 KiB are kept outside of the server's database. One is collected when nothing
    touched it for the server's retention and 7 days more, and no history that is left names it.
    Runs and files of results are never touched.
    """
    report = asyncio.run(_collect(delete=delete))
    if json:
        emit_json(
            {
                "directory": str(report.directory),
                "dry_run": report.dry_run,
                "untouched_since": report.limit.isoformat(),
                "blobs": report.blobs,
                "blobs_bytes": report.blobs_bytes,
                "collected": report.collected,
                "collected_bytes": report.collected_bytes,
                "kept_in_use": report.kept_in_use,
            }
        )
        return
    emit(f"{report.directory}: {report.blobs} stored values, {_size(report.blobs_bytes)}")
    emit(
        f"{report.collected} of them ({_size(report.collected_bytes)}) "
        f"{'would be' if report.dry_run else 'were'} removed: "
        f"untouched since {report.limit:%Y-%m-%d}, in no history"
    )
    if report.dry_run and report.collected:
        emit("nothing was removed; `perdure gc --delete` does it")


async def _collect(*, delete: bool) -> GcReport:
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings
    from perdure.gc import collect

    settings = Settings.from_env()
    async with server_to_act(settings, "gc") as perdure:
        return await collect(perdure.client, settings, dry_run=not delete)


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
