"""``export``: models of other frameworks become ONNX files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, CommandError, failing, says


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="FILE.py:NAME, FILE.skops, or FILE.ubj or FILE.json of XGBoost.",
        ),
    ],
    out: Annotated[Path, options.file("ONNX file to write.")],
    data: Annotated[
        Path | None,
        options.file(
            "Labeled data (.npz, .csv, .parquet) whose rows are compared.",
            show_default="rows made up",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        says(
            "An input, such as x=FP32[64], the shape of one row. May be repeated.",
            "--input",
            metavar="NAME=DTYPE[SHAPE]",
            show_default="what the model says",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        says(
            "Name of an output. May be repeated.",
            "--output",
            metavar="NAME",
            show_default="label, probabilities, ...",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        says("Of ONNX's operators.", metavar="NUMBER", show_default="one that all versions run"),
    ] = None,
    tolerance: Annotated[
        float, says("Largest difference of two numbers, relative above 1.", min=0.0)
    ] = 1e-4,
    differing: Annotated[
        float, says("Share of the rows that may differ.", min=0.0, max=1.0, metavar="SHARE")
    ] = 0.0,
    trust: Annotated[
        list[str] | None,
        says("A type that a skops file may hold. May be repeated.", metavar="TYPE"),
    ] = None,
    variant: Annotated[
        str | None, says("Its name in the YAML.", metavar="NAME", show_default="the file's")
    ] = None,
    seed: Annotated[int, says("Of rows that are made up.", min=0)] = 0,
    json: terminal.Json = False,
) -> None:
    """Write a scikit-learn, XGBoost or PyTorch model as ONNX that is ready to serve.

    The file is written if ONNX Runtime answers as the model does. A Python file is your code, and
    runs in this process; pickles are never loaded. Needs the extra `export`.
    """
    # Before NumPy and PyTorch are imported: threads that wait actively take the cores from those
    # that compute.
    for name, value in (("OMP_WAIT_POLICY", "PASSIVE"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    from inferway.exporting import DisagreementError, ExportError, tensor
    from inferway.exporting import export as exported
    from inferway.profiling import DataError

    if out.is_dir():
        raise CommandError(f"--out {out} is a folder; name the file")
    with failing(ValueError):
        tensors = [tensor(one) for one in inputs or ()]
    options.writable(out.parent)
    with (
        failing(ExportError, DataError),
        failing(DisagreementError, code=FAILED),
        terminal.progress() as told,
    ):
        made = exported(
            source,
            out,
            data=data,
            inputs=tensors,
            outputs=outputs or (),
            opset=opset,
            tolerance=tolerance,
            differing=differing,
            trust=trust or (),
            variant=variant,
            seed=seed,
            progress=told,
        )
    if json:
        terminal.document({"schema": 1, **made.to_json()})
    else:
        print(made.yaml, end="")
