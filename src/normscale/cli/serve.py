"""``normscale serve``: the guard as an HTTP service, with a page to watch it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from normscale.errors import MissingExtra
from normscale.guard.policy import Policy
from normscale.serve.bounds import Bounds

EXAMPLE = "Example: [bold]normscale serve detector.safetensors[/bold], or [bold]normscale serve sample --demo[/bold]"

_POLICY, _BOUNDS = Policy(), Bounds()
_DRIFT = "Drift"
_LIMITS = "Limits"


def serve(
    detector: Annotated[str, typer.Argument(help="A detector that `normscale fit --threshold-on` saved, or `sample`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Any other address than loopback needs --tokens.")] = "127.0.0.1",
    store: Annotated[
        str | None,
        typer.Option(
            help="Where the statistics are kept: a file, postgresql://..., or :memory:. "
            "Default: the detector file's name with .sqlite."
        ),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="The file that `normscale token` wrote: who may do what. Default: no tokens.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="An ONNX classifier: POST /v1/classify takes its inputs.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this, whatever the detector file says.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work and the store.")] = 1,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name that the server may be called by; may be repeated.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose page may change the guard, such as https://guard.example.com: needed behind a proxy "
            "that rewrites Host; may be repeated."
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With `sample`: send the guard a stream to watch.")] = False,
    on_drift: Annotated[
        str,
        typer.Option(help="On alarm: freeze the statistics, warn only, or ignore drift.", rich_help_panel=_DRIFT),
    ] = _POLICY.on_drift,
    balance: Annotated[
        float, typer.Option(help="Share of rows predicted otherwise than in training.", rich_help_panel=_DRIFT)
    ] = _POLICY.balance,
    shift: Annotated[
        float, typer.Option(help="Shift of a class's mean logit, in training deviations.", rich_help_panel=_DRIFT)
    ] = _POLICY.shift,
    spread: Annotated[
        float,
        typer.Option(help="Change of a class's spread: 0.6 is 1.6 times wider or narrower.", rich_help_panel=_DRIFT),
    ] = _POLICY.spread,
    flagged: Annotated[
        float, typer.Option(help="Share of rows that are flagged.", rich_help_panel=_DRIFT)
    ] = _POLICY.flagged,
    window: Annotated[
        float, typer.Option(help="Recent rows that are watched.", rich_help_panel=_DRIFT)
    ] = _POLICY.window,
    calm: Annotated[
        float,
        typer.Option(help="Rows without an alarm until a frozen guard thaws; inf: never.", rich_help_panel=_DRIFT),
    ] = _POLICY.calm,
    outlier: Annotated[
        float,
        typer.Option(
            help="A row farther out, in training deviations, is flagged and not taken in.", rich_help_panel=_DRIFT
        ),
    ] = _POLICY.outlier,
    client_cap: Annotated[
        int | None, typer.Option(help="Rows of one client taken in per minute.", rich_help_panel=_LIMITS)
    ] = None,
    minute_cap: Annotated[
        int | None, typer.Option(help="Rows of all clients taken in per minute.", rich_help_panel=_LIMITS)
    ] = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Rows in one request.", rich_help_panel=_LIMITS)
    ] = _BOUNDS.max_rows,
    max_body: Annotated[
        int, typer.Option(min=1, help="Bytes in one request.", rich_help_panel=_LIMITS)
    ] = _BOUNDS.max_body,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests at once.", rich_help_panel=_LIMITS)
    ] = _BOUNDS.max_requests,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="For a body to arrive, and for its answer.", rich_help_panel=_LIMITS)
    ] = _BOUNDS.max_seconds,
) -> None:
    """Serve a guard over HTTP: rows in, scores out, running statistics that survive a crash, and a page at /."""
    try:
        from normscale.serve.run import bind, check_addresses
        from normscale.serve.run import serve as run
        from normscale.serve.settings import SAMPLE, ServerSettings
    except ImportError as error:
        raise MissingExtra(
            f"normscale serve needs packages that are not installed ({error}). Run: pip install 'normscale[serve]'"
        ) from error
    from normscale.errors import InvalidInput

    if demo and detector != SAMPLE:
        raise InvalidInput("--demo plays the embedded sample: normscale serve sample --demo.")
    settings = ServerSettings(
        detector=detector,
        store=store if store is not None else f"{os.path.splitext(detector)[0]}.sqlite",
        policy=Policy(
            on_drift=on_drift,
            window=window,
            evidence=min(_POLICY.evidence, 0.5 * window),
            balance=balance,
            shift=shift,
            spread=spread,
            flagged=flagged,
            calm=calm,
            outlier=outlier,
            client_cap=client_cap,
            minute_cap=minute_cap,
        ).checked(),
        threshold=threshold,
        model=model,
        tokens=tokens,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        workers=workers,
        bounds=Bounds(max_body, max_rows, max_requests, max_seconds),
        demo=demo,
    )
    check_addresses(settings)
    with bind(settings) as listener:
        opened = settings.open_guard()  # what is wrong with it is said here, once, and not by every worker
        address, bound_port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        state, wanted = opened.state, " and ".join(opened.widths)
        typer.echo(
            f"{opened.detector!r} on {opened.n_classes} classes, threshold {state.threshold.value:.6g}\n"
            f"store {opened.store.name}: {state.rows} rows in the statistics, {opened.mode}; on drift: {on_drift}\n"
            f"http://{shown}:{bound_port}/ is the page; POST /v1/score takes {wanted}. Ctrl-C stops.",
            err=True,
        )
        if opened.detector.baseline_ is None:
            typer.echo(
                "note: the detector file does not say what training looked like, so only the flagged share is watched; "
                "fit it again with this version.",
                err=True,
            )
        opened.store.close()
        run(settings, listener)
