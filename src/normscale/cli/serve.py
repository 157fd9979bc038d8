"""``normscale serve``: the guard as an HTTP service, with a page to watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscale.errors import MissingExtra
from normscale.guard.policy import Expect, OnDrift, Policy
from normscale.guard.server.bounds import Bounds
from normscale.guard.server.event_log import LogFormat

if TYPE_CHECKING:
    from normscale.guard import GuardPair

EXAMPLE = "Example: [bold]normscale serve detector.safetensors[/bold], or [bold]normscale serve sample --demo[/bold]"

_POLICY, _BOUNDS = Policy(), Bounds()
_ON_DRIFT = OnDrift(_POLICY.on_drift)
_EXPECT = Expect(_POLICY.expect)
_DRIFT = "Drift"
_LIMITS = "Limits"


def serve(
    detector: Annotated[
        str,
        typer.Argument(
            help="A detector that `normscale fit --threshold-on` saved, or `sample`; or guards.toml, several guards by "
            "name, each with its detector, store, tokens and policy."
        ),
    ],
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
    model: Annotated[
        str | None, typer.Option(help="An ONNX classifier: clients send its inputs, and get its outputs too.")
    ] = None,
    logits: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's output that holds the logits, where several could.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this, whatever the detector file says.")
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take over a store of another detector with the same classes."),
    ] = False,
    shadow: Annotated[
        str | None,
        typer.Option(
            help="A second detector file: it is sent the same rows, its answers are only compared, until an admin lets "
            "it serve (POST /v1/switch)."
        ),
    ] = None,
    shadow_store: Annotated[
        str | None, typer.Option(help="Its statistics. Default: the shadow file's name with .sqlite.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work and the store.")] = 1,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name that the server may be called by; needs --tokens; may be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose page may change the guard, such as https://guard.example.com: needed behind a proxy "
            "that rewrites Host; may be repeated."
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="The address or network of a proxy that is believed when it says who a request comes from "
            "(X-Forwarded-For); may be repeated."
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Of one line for every alarm, freeze, decision and refusal.")
    ] = LogFormat.TEXT,
    webhook: Annotated[
        str | None,
        typer.Option(help="An http(s) address that gets a CloudEvent for every alarm, freeze, thaw and decision."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With `sample`: send the guard a stream to watch.")] = False,
    on_drift: Annotated[
        OnDrift,
        typer.Option(help="On alarm: freeze the statistics, warn only, or ignore drift.", rich_help_panel=_DRIFT),
    ] = _ON_DRIFT,
    expect: Annotated[
        Expect,
        typer.Option(
            help="Whether the classes come as often as in training, or the stream is sorted or mostly one class.",
            rich_help_panel=_DRIFT,
        ),
    ] = _EXPECT,
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
        float, typer.Option(help="Recent rows that are watched; at least 500.", rich_help_panel=_DRIFT)
    ] = _POLICY.window,
    calm: Annotated[
        float,
        typer.Option(
            help="Rows well below a limit until its alarm is over and a frozen guard thaws; inf: never.",
            rich_help_panel=_DRIFT,
        ),
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
        from normscale._kernels import announce_compilation
        from normscale.guard.server.event_log import tell
        from normscale.guard.server.run import bind, check_settings, start_log
        from normscale.guard.server.run import serve as run
        from normscale.guard.server.settings import (
            NAME,
            SAMPLE,
            GuardSettings,
            ServerSettings,
            default_store,
            read_guards,
        )
    except ImportError as error:
        raise MissingExtra(
            f"normscale serve needs packages that are not installed ({error}). Run: pip install 'normscale[serve]'"
        ) from error
    from normscale.errors import InvalidInput

    if demo and detector != SAMPLE:
        raise InvalidInput("--demo plays the embedded sample: normscale serve sample --demo.")
    policy = Policy(
        on_drift=on_drift,
        expect=expect,
        window=window,
        balance=balance,
        shift=shift,
        spread=spread,
        flagged=flagged,
        calm=calm,
        outlier=outlier,
        client_cap=client_cap,
        minute_cap=minute_cap,
    )
    if detector.endswith(".toml"):
        if any((store, tokens, model, logits, adopt, shadow, shadow_store)) or threshold is not None:
            raise InvalidInput(
                f"store, tokens, model, logits, threshold, adopt and shadow of several guards stand in {detector}."
            )
        guards = read_guards(detector, policy)
    else:
        own_store = default_store(detector) if store is None else store
        beside = shadow_store or (default_store(shadow) if shadow is not None else "")
        guards = {
            NAME: GuardSettings(detector, own_store, policy, threshold, model, tokens, adopt, shadow, beside, logits)
        }
    settings = ServerSettings(
        guards=guards,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        proxies=tuple(trusted_proxy or ()),
        workers=workers,
        bounds=Bounds(max_body, max_rows, max_requests, max_seconds),
        demo=demo,
        log_format=log_format.value,
        webhook=webhook,
    )
    if logits is not None and model is None:
        raise InvalidInput("--logits names an output of --model; give both.")
    check_settings(settings)
    as_json = log_format is LogFormat.JSON
    if as_json:  # then nothing but JSON goes to stderr
        start_log(settings)
        announce_compilation(lambda: tell("compiling"))
    with bind(settings) as listener:
        address, bound_port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        for name, guard in guards.items():
            # What is wrong with it is said here, once, and not by every worker.
            opened = guard.open()
            classifier = guard.load_classifier(opened.widths)
            server = f"http://{shown}:{bound_port}/"
            address = server if name == NAME else f"{server}{name}/"
            notes = _notes(opened) + ([classifier.note] if classifier is not None and classifier.note else [])
            if as_json:
                state = opened.serving.state
                facts: dict[str, Any] = {"detector": repr(opened.serving.detector), "store": opened.serving.store.name}
                facts |= {"rows": state.rows, "mode": opened.serving.mode, "notes": notes}
                tell("guard", guard=name, address=address, **facts)
            else:
                _introduce(opened, address, f"{server}v2/models/{name}/infer", notes)
            opened.close()
        if not as_json:
            typer.echo("Ctrl-C stops.", err=True)
        run(settings, listener)


def _introduce(guards: GuardPair, address: str, infer: str, notes: list[str]) -> None:
    """Say which guard is served where."""
    guard = guards.serving
    state, wanted = guard.state, " and ".join(guards.widths)
    typer.echo(
        f"{guard.detector!r} on {guard.n_classes} classes, threshold {state.threshold.value:.6g}\n"
        f"store {guard.store.name}: {state.rows} rows in the statistics, {guard.mode}; "
        f"on drift: {guard.policy.on_drift}\n"
        f"{address} is the page; POST {infer} takes {wanted}.",
        err=True,
    )
    for note in notes:
        typer.echo(f"normscale: note: {note}", err=True)


def _notes(guards: GuardPair) -> list[str]:
    """What else an operator should know of a guard."""
    guard, notes = guards.serving, []
    if guard.detector.baseline_ is None:
        notes.append(
            "the detector file does not say what training looked like, so only the flagged share is watched; "
            "fit it again with this version."
        )
    if guard.adopted is not None:
        notes.append("the store was another detector's; its statistics begin anew.")
    if guards.shadow is not None:
        notes.append(f"{guards.shadow.detector!r} on {guards.shadow.store.name} is its shadow.")
    if guards.former is not None:
        notes.append(f"it was switched to from {guards.former.detector!r} on {guards.former.store.name}.")
    return notes
