"""``normscale token``: make a client known to the guard's server."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLE = "Example: [bold]normscale token camera-7 --role score --file tokens.jsonl[/bold]"


def token(
    name: Annotated[str, typer.Argument(help="Who will use it; shows up in logs and on the page.")],
    role: Annotated[str, typer.Option(help="score (send rows), read (look) or admin (everything).")] = "score",
    file: Annotated[
        str, typer.Option("--file", "-f", help="The file of tokens; made for its owner alone when it is not there.")
    ] = "tokens.jsonl",
) -> None:
    """Make a token for `normscale serve --tokens FILE`. The secret is printed once; the file keeps its hash only."""
    from normscale.guard.server.tokens import add_token

    typer.echo(add_token(file, name, role))
    typer.echo(
        f"{name} may {_PERMISSIONS[role]}. This secret is shown once and kept nowhere; {file} holds its hash. "
        "Send it as: Authorization: Bearer SECRET. To revoke it, remove its line; running servers notice.",
        err=True,
    )


_PERMISSIONS = {
    "score": "send rows and nothing else",
    "read": "look at the guard and change nothing",
    "admin": "score, look, and change the guard",
}
