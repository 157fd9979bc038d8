"""``normscale serve``: the guard as an HTTP service, with a page to watch it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscale.cli import option, say
from normscale.errors import InvalidInput, needs
from normscale.guard.policy import Expect, OnDrift, Policy, StreamBy
from normscale.guard.server.events import LogFormat
from normscale.guard.server.request import Bounds

if TYPE_CHECKING:
    from normscale.guard.server.settings import ServerSettings

EXAMPLES = ("normscale serve detector.safetensors", "normscale serve sample --demo")

_POLICY, _BOUNDS = Policy(), Bounds()
ON_DRIFT, EXPECT, STREAM_BY = OnDrift(_POLICY.on_drift), Expect(_POLICY.expect), StreamBy(_POLICY.stream_by)
StoreOption = Annotated[str | None, option("A file, postgresql://... or :memory:.", "STORE")]
ThresholdOption = Annotated[float | None, option("Flag scores above it.", shown="the detector's")]


_drift, _limit = partial(option, rich_help_panel="Drift"), partial(option, rich_help_panel="Limits")
OnDriftOption = Annotated[OnDrift, _drift("What an alarm does.")]
ExpectOption = Annotated[Expect, _drift("Do classes come as in training?")]


def serve(
    detector: Annotated[
        str, typer.Argument(metavar="DETECTOR", help="A file with a threshold, `sample`, or guards.toml.")
    ],
    port: Annotated[int, option("0 takes a free one.", min=0, max=65535)] = 8000,
    host: Annotated[str, option("Any but loopback needs --tokens.")] = "127.0.0.1",
    store: StoreOption = None,
    tokens: Annotated[str | None, option("Of `normscale token`: who may do what.", "FILE")] = None,
    model: Annotated[str | None, option("An ONNX classifier: clients send its inputs.", "FILE")] = None,
    logits: Annotated[str | None, option("The model's output with the logits.", "NAME")] = None,
    threshold: ThresholdOption = None,
    workers: Annotated[int, option("Processes that share the work and the store.", min=1)] = 1,
    allow_host: Annotated[list[str] | None, option("A further name of this server; repeatable.", "NAME")] = None,
    trusted_proxy: Annotated[
        list[str] | None, option("Its X-Forwarded-For is believed; repeatable.", "ADDRESS")
    ] = None,
    log_format: Annotated[LogFormat, option("Of a line for every alarm and decision.")] = LogFormat.TEXT,
    webhook: Annotated[str | None, option("Gets a CloudEvent for every alarm.", "URL")] = None,
    demo: Annotated[bool, option("With `sample`: send the guard a stream to watch.", "--demo")] = False,
    on_drift: OnDriftOption = ON_DRIFT,
    expect: ExpectOption = EXPECT,
    stream_by: Annotated[StreamBy, _drift("One stream, or one for every client and source.")] = STREAM_BY,
    balance: Annotated[float, _drift("Share of rows in unexpected classes.")] = _POLICY.balance,
    shift: Annotated[float, _drift("Shift of a mean logit, in standard deviations.")] = _POLICY.shift,
    spread: Annotated[float, _drift("Change of a class's spread: 0.6 is 1.6 times.")] = _POLICY.spread,
    flagged: Annotated[float, _drift("Share of rows that are flagged.")] = _POLICY.flagged,
    window: Annotated[float, _drift("Recent rows that are watched; at least 500.")] = _POLICY.window,
    calm: Annotated[float, _drift("Calm rows that end an alarm; inf: never.")] = _POLICY.calm,
    outlier: Annotated[float, _drift("Standard deviations of a row that is kept out.")] = _POLICY.outlier,
    max_rows: Annotated[int, _limit("Rows in one request.", min=1)] = _BOUNDS.max_rows,
    max_body: Annotated[int, _limit("Bytes in one request.", min=1)] = _BOUNDS.max_body,
    max_requests: Annotated[int, _limit("Requests at once.", min=1)] = _BOUNDS.max_requests,
    max_seconds: Annotated[float, _limit("For a body to arrive, and for its answer.", min=0.1)] = _BOUNDS.max_seconds,
) -> None:
    """Serve a guard over HTTP: rows in, scores out, and a page at /.

    Its running statistics survive a crash. Without --store they are kept beside the detector file.
    """
    given = dict(locals())  # every option by its name, before anything else has one
    with needs("normscale serve needs packages that are not installed", "serve"):
        from normscale.guard.server import settings
    own = {name: given[name] for name in ("store", "tokens", "model", "logits", "threshold")}
    policy = Policy(**{name: given[name] for name in Policy.__dataclass_fields__ if name in given})
    if demo and detector != settings.SAMPLE:
        raise InvalidInput("--demo plays the embedded sample: normscale serve sample --demo.")
    if logits is not None and model is None:
        raise InvalidInput("--logits names an output of --model; give both.")
    if detector.endswith(".toml"):
        if any(value not in (None, False) for value in own.values()):
            raise InvalidInput(f"{', '.join(own)} of several guards stand in {detector}.")
        guards = settings.read_guards(detector, policy)
    else:
        own["store"] = store or settings.default_store(detector)
        guards = {settings.NAME: settings.GuardSettings(detector, policy=policy, **own)}
    _start(
        settings.ServerSettings(
            guards=guards,
            host=host,
            port=port,
            hosts=tuple(allow_host or ()),
            proxies=tuple(trusted_proxy or ()),
            workers=workers,
            bounds=Bounds(max_body, max_rows, max_requests, max_seconds),
            demo=demo,
            log_format=log_format.value,
            webhook=webhook,
        )
    )


def _start(settings: ServerSettings) -> None:
    """Check everything once, say which guards are served where, and serve."""
    from normscale._kernels import announce_compilation
    from normscale.guard.server import run
    from normscale.guard.server.events import tell
    from normscale.guard.server.settings import NAME

    run.check_settings(settings)
    as_json = settings.log_format == LogFormat.JSON
    if as_json:  # then nothing but JSON goes to stderr
        run.start_log(settings)
        announce_compilation(lambda: tell("compiling"))
    with run.bind(settings) as listener:
        host, port = listener.getsockname()[:2]
        server = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        for name, one in settings.guards.items():
            # What is wrong with it is said here, once, and not by every worker.
            guard, classifier = one.open()
            notes = guard.notes + ([classifier.note] if classifier is not None and classifier.note else [])
            address, state = server if name == NAME else f"{server}{name}/", guard.state
            if as_json:
                facts: dict[str, Any] = {
                    "detector": repr(guard.detector),
                    "store": guard.store.name,
                    "rows": state.stream.rows,
                }
                tell("guard", guard=name, address=address, **facts, mode=guard.mode, notes=notes)
            else:
                say(
                    f"{guard.detector!r} on {guard.n_classes} classes, threshold {state.threshold.value:.6g}\n"
                    f"store {guard.store.name}: {state.stream.rows} rows in the statistics, {guard.mode}; "
                    f"on drift: {guard.policy.on_drift}\n"
                    f"{address} is the page; POST {server}v2/models/{name}/infer takes {' and '.join(guard.widths)}."
                )
                for note in notes:
                    say(f"normscale: note: {note}")
            guard.store.close()
        if not as_json:
            say("Ctrl-C stops.")
        run.serve(settings, listener)
