"""``normscale token``: make a client known to the guard's server."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli import option

EXAMPLES = ("normscale token camera-7 --role score --file tokens.jsonl",)


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it; shown in logs and on the page.")],
    role: Annotated[str, option("score (send rows), read (look) or admin (all).")] = "score",
    file: Annotated[str, option("The file of tokens.", "FILE", "--file", "-f")] = "tokens.jsonl",
) -> None:
    """Make a token for `normscale serve --tokens FILE`.

    The secret is printed once; the file keeps its hash only, and is readable by its owner alone.
    """
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
