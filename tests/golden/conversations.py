"""What servers answer: started as a person starts them, asked over sockets and by commands."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from exchanges import EXCHANGES, KEYED, KEYS, Exchange, row_of
from onnx import TensorProto, helper, numpy_helper
from secured import secured
from served import body, names, running, serving, told, until
from transcript import plain, transcript

_GET: Final = b"GET %s HTTP/1.1\r\nHost: test\r\n\r\n"

Chapters = dict[str, dict[str, str]]

CHAPTERS: Final = (
    "grpc",
    "http",
    "http-with-keys",
    "metrics",
    "network",
    "server-commands",
    "status",
    "tls",
)


def conversations(folder: Path) -> Chapters:
    """Hold all of them, with servers of their own, in an empty folder."""
    shutil.copytree(Path(__file__).parent / "files", folder, dirs_exist_ok=True)
    for name, weight in (("tiny", 1.0), ("big", 2.0)):
        _model(folder / f"{name}.onnx", weight)
    chapters: Chapters = {name: {} for name in CHAPTERS}
    limits = ("--max-body", "2", "--max-json", "1")
    with serving(folder, "served.yaml", *limits) as said:
        chapters["http"] = _asked(EXCHANGES, said, folder)
        port = said["http_port"]
        url = f"http://127.0.0.1:{port}"
        checked = transcript(folder, ["conformance", url, "--json"])
        chapters["server-commands"]["conformance"] = _unported(checked, port)
        chapters["metrics"]["serve"] = names(body("/metrics", said["admin_port"]))
        _rich(chapters, port, folder)
    _keyed(chapters, folder)
    chapters["network"] = _network(folder)
    return chapters | secured(folder)


def _network(folder: Path) -> dict[str, str]:
    """Run two nodes, one of which has all that runs."""
    words = ["up", "nodes.yaml", "--json", "--run", "run", "--state", "state"]
    get = Exchange(_GET % b"/v2/node")
    with running([sys.executable, "-m", "inferway", *words], folder) as said:
        nodes = said["network"]["nodes"]
        at = {name: _port(node["url"]) for name, node in nodes.items()}
        admin = {name: _port(node["admin"]) for name, node in nodes.items()}
        # It is ready before it has heard what its neighbor offers, one variant after the other.
        until(lambda: body("/status", admin["shop"]).count("@cloud") == 2)
        # Who has nothing to offer says so with the first refresh.
        until(lambda: all(body("/v2/node", at).count('"menu"') == 2 for at in admin.values()))
        found = {"infer": told(row_of("digits"), at["shop"], folder)}
        for name in nodes:
            found[f"GET /v2/node of {name}"] = told(get, admin[name], folder)
            status = Exchange(_GET % b"/status")
            found[f"GET /status of {name}"] = told(status, admin[name], folder)
            for path in ("config", "stats"):
                asked = Exchange(_GET % f"/v2/models/digits/{path}".encode())
                found[f"GET {path} of {name}"] = told(asked, at[name], folder)
            found[f"metrics of {name}"] = names(body("/metrics", admin[name]))
        ports = re.sub(r"(127\.0\.0\.1:)[0-9]+", r"\1{port}", json.dumps(said, indent=2))
        found["up"] = f"$ inferway {' '.join(words)}\n{plain(ports, folder)}\n"
    return found


def _keyed(chapters: Chapters, folder: Path) -> None:
    keys = folder / "keys"
    keys.write_text("".join(f"{role}={key}\n" for role, key in KEYS.items()))
    with serving(folder, "served.yaml", "--keys", "keys") as said:
        chapters["http-with-keys"] = _asked(KEYED, said, folder)
        port = said["admin_port"]
        asked = ["apply", "applied.yaml", "--admin-url", f"http://127.0.0.1:{port}"]
        asked += ["--key-file", "keys"]
        for name, words in (("", ["--json"]), (" in words", [])):
            applied = _unported(transcript(folder, [*asked, *words]), port)
            chapters["server-commands"][f"apply{name}"] = applied
        changed = [asked[0], *asked[2:], "--target", "0.8"]
        for name, words in (
            (": a dry run", ["--policy", "priced", "--dry-run", "--json"]),
            (": a dry run in words", ["--policy", "priced", "--dry-run"]),
            (": a dry run out of reach", ["--target", "0.99", "--dry-run"]),
            (": values", []),
            (": a dry run of what is in force", ["--dry-run"]),
        ):
            applied = _unported(transcript(folder, [*changed, *words]), port)
            chapters["server-commands"][f"apply{name}"] = applied


def _rich(chapters: Chapters, port: int, folder: Path) -> None:
    """Serve what has metrics of its own: a scheduler, a remote variant and a recording."""
    file = folder / "rich.yaml"
    file.write_text(file.read_text().replace("PORT", str(port)))
    with serving(folder, "rich.yaml", "--record", "recorded") as said:
        for task in ("digits", "far"):
            told(row_of(task), said["http_port"], folder)
        chapters["metrics"]["serve with all there is"] = names(body("/metrics", said["admin_port"]))
        chapters["status"]["serve with all there is"] = told(
            Exchange(_GET % b"/status"), said["admin_port"], folder
        )
    for name, words in (("", ["--json"]), (" in words", [])):
        replayed = transcript(folder, ["replay", "recorded", *words])
        chapters["server-commands"][f"replay{name}"] = replayed


def _asked(
    exchanges: Mapping[str, Exchange], said: Mapping[str, Any], folder: Path
) -> dict[str, str]:
    return {
        name: told(one, said["admin_port" if one.admin else "http_port"], folder)
        for name, one in exchanges.items()
    }


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _unported(text: str, port: int) -> str:
    return text.replace(f":{port}", ":{port}")


def _model(path: Path, weight: float) -> None:
    """Write a model of sums, which are whole numbers where the inputs are."""
    weights = numpy_helper.from_array(np.full((4, 3), weight, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["image", "w"], ["scores"])],
        "sums",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [weights],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(path))
