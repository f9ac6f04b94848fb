"""Feedback on answers: joined live and over restarts, and the accuracy that it comes to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import Keys, ServeError

FILE = """
tasks:
  digits:
    variants: {{tiny: {{model: zoo://digits/tiny}}}}
    {more}
  other:
    variants: {{small: {{model: zoo://digits/small}}}}
nodes:
  here: {{instances: {{digits/tiny: 1, other/small: 1}}, buffer: 64}}
dispatch: {{policy: fastest-only}}
"""
ON = "feedback: {keep: 24 h, limit: 1e6}"
SAYS, ASKS = "a-key-of-feedback", "a-key-of-all-else"
KEYS = [f"feedback={SAYS}", f"infer+read+admin={ASKS}"]
PUBLISHED = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
PAGE = "/v2/models/digits/feedback"


def serve(start: Callable[..., Any], folder: Path, more: str = ON, **options: Any) -> Any:
    file = folder / "digits.yaml"
    file.write_text(FILE.format(more=more))
    options = {"keys": Keys(KEYS), "answers": folder / "answers"} | options
    return start(deployment=inferway.load(file), **options)


def send(
    running: Any,
    method: str,
    path: str,
    body: Any = None,
    key: str = SAYS,
    more: str = "",
    *,
    admin: bool = False,
) -> Any:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n{shown}{more}\r\n"
    answer = running.ask(head.encode() + raw, admin=admin)
    if not admin and (method != "GET" or answer.status != 403):
        assert str(answer.status) in described(method, path)
    return answer


def described(method: str, path: str) -> Any:
    """Read which answers the published description has."""
    parts = path.split("/")
    parts[3:4] = ["{task}"]
    parts[5:] = ["{request}"] * len(parts[5:])
    return PUBLISHED["paths"]["/".join(parts)][method.lower()]["responses"]


def infer(running: Any, name: str, first: int = 0, rows: int = 1) -> list[int]:
    """Ask under a name, and read the classes that are answered."""
    images = load_testset().images[first : first + rows]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(images.shape)}
    body = {"inputs": [tensor | {"data": images.ravel().tolist()}]}
    answer = send(
        running, "POST", "/v2/models/digits/infer", body, ASKS, f"X-Request-Id: {name}\r\n"
    )
    assert answer.status == 200
    data = next(one["data"] for one in answer.json["outputs"] if one["datatype"] == "FP32")
    count = len(data) // rows
    scores = [data[row * count : (row + 1) * count] for row in range(rows)]
    return [max(range(count), key=row.__getitem__) for row in scores]


def accuracy(running: Any) -> Any:
    return send(running, "GET", "/v2/models/digits/accuracy", key=ASKS).json["variants"]["tiny"]


@pytest.fixture(scope="module")
def served(start_shared: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return serve(start_shared, tmp_path_factory.mktemp("feedback"))


@pytest.fixture
def serving(served: Any, until: Callable[[Callable[[], bool]], None]) -> Any:
    """A server that has looked up what labels say of its variants, which it does once it serves."""
    until(
        lambda: (
            "tiny" in send(served, "GET", "/v2/models/digits/accuracy", key=ASKS).json["variants"]
        )
    )
    return served


def test_labels_are_compared_with_what_was_answered(serving: Any) -> None:
    before = accuracy(serving)["labels"]
    (said,) = infer(serving, "right")
    assert send(serving, "POST", PAGE, {"id": "right", "label": said}).json == {
        "matched": 1,
        "unknown": [],
        "doubled": [],
    }
    (said,) = infer(serving, "wrong", 1)
    rows = infer(serving, "rows", 2, 4)
    for name in ("told", "scored"):
        infer(serving, name)
    feedback = [
        {"id": "wrong", "label": said + 1},
        {"id": "rows", "label": [rows[0], rows[1], rows[2], rows[3] + 1]},
        {"id": "told", "correct": False},
        {"id": "scored", "score": 0.5},
        {"id": "right", "label": said},
        {"id": "nobody", "correct": True},
        {"id": "told", "correct": True},
    ]
    assert send(serving, "POST", PAGE, feedback).json == {
        "matched": 4,
        "unknown": ["nobody"],
        "doubled": ["right", "told"],
    }
    now = accuracy(serving)
    assert now["labels"] == before + 5
    assert now["mean"] * now["labels"] == pytest.approx(2.25)
    assert now["low"] < now["mean"] < now["high"]
    assert 0.0 < now["profile"] < 1.0


def test_metrics_and_status_have_it(serving: Any) -> None:
    infer(serving, "counted")
    send(serving, "POST", PAGE, {"id": "counted", "correct": True})
    now = accuracy(serving)
    text = send(serving, "GET", "/metrics", key=ASKS, admin=True).body.decode()
    told = {
        one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if "feedback" in one.name and not one.name.endswith("created")
    }
    assert told["inferway_feedback_labels_total"] == now["labels"]
    assert told["inferway_feedback_accuracy_ratio"] == now["mean"]
    assert told["inferway_feedback_accuracy_low_ratio"] == now["low"]
    assert told["inferway_feedback_accuracy_high_ratio"] == now["high"]
    assert told["inferway_feedback_profile_ratio"] == now["profile"]
    assert told["inferway_feedback_estimate_ratio"] == now["estimate"]
    assert told["inferway_feedback_lost_answers_total"] == 0
    tasks = send(serving, "GET", "/status", key=ASKS, admin=True).json["tasks"]
    assert tasks["digits"]["feedback"]["variants"]["tiny"] == now
    assert "feedback" not in tasks["other"]


def test_an_answer_is_deleted_with_its_feedback(serving: Any) -> None:
    infer(serving, "gone")
    labels = accuracy(serving)["labels"]
    gone = send(serving, "DELETE", f"{PAGE}/gone")
    assert (gone.status, gone.json) == (200, {"deleted": "gone"})
    again = send(serving, "DELETE", f"{PAGE}/gone")
    assert again.status == 404
    assert again.json == {"error": "no answer 'gone' of task 'digits' is kept"}
    assert send(serving, "POST", PAGE, {"id": "gone", "correct": True}).json["unknown"] == ["gone"]
    assert accuracy(serving)["labels"] == labels


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (b"{", "the feedback is not valid"),
        ({"id": "one"}, "exactly one of label, correct and score"),
        ({"id": "one", "label": 1, "correct": True}, "exactly one of label, correct and score"),
        ({"id": "one", "score": 1.5}, "<= 1"),
        ({"id": "one", "labels": 1}, "labels"),
        ([{"id": "fine", "correct": True}, {"id": "one", "label": "seven"}], "of another kind"),
        ({"id": "one", "label": [1, 2]}, "has 1 row, and its label is of 2 rows"),
    ],
)
def test_wrong_feedback_is_refused_with_a_sentence(serving: Any, item: Any, sentence: str) -> None:
    infer(serving, "one")
    infer(serving, "fine")
    labels = accuracy(serving)["labels"]
    refused = send(serving, "POST", PAGE, item)
    assert refused.status == 400
    assert sentence in refused.json["error"]
    assert accuracy(serving)["labels"] == labels  # all of it or nothing


def test_only_a_key_for_feedback_says_it(serving: Any) -> None:
    item = {"id": "x", "correct": True}
    for method, path, body in (("POST", PAGE, item), ("DELETE", f"{PAGE}/x", None)):
        assert send(serving, method, path, body, key="").status == 401
        assert send(serving, method, path, body, key=ASKS).status == 403
    assert send(serving, "GET", "/v2/models/digits/accuracy", key=SAYS).status == 403
    assert send(serving, "GET", "/v2/models/digits", key=SAYS).status == 403
    for method, path in (("POST", "other/feedback"), ("DELETE", "other/feedback/x")):
        off = send(serving, method, f"/v2/models/{path}", item)
        assert off.status == 404
        assert "give it `feedback` in the deployment file" in off.json["error"]
    assert send(serving, "GET", "/v2/models/other/accuracy", key=ASKS).status == 404
    assert send(serving, "POST", "/v2/models/none/feedback", item).status == 404


def test_answers_and_accuracy_are_there_after_a_restart(start: Any, tmp_path: Path) -> None:
    first = serve(start, tmp_path)
    infer(first, "early")
    infer(first, "late")
    send(first, "POST", PAGE, {"id": "early", "correct": True})
    before = accuracy(first)
    with pytest.raises(ServeError, match="another server has them"):
        serve(start, tmp_path)
    first.wait(first.server.stop())
    second = serve(start, tmp_path)
    feedback = [{"id": "late", "correct": False}, {"id": "early", "correct": True}]
    joined = send(second, "POST", PAGE, feedback).json
    after = accuracy(second)
    assert joined == {"matched": 1, "unknown": [], "doubled": ["early"]}
    assert (before["labels"], before["mean"]) == (1, 1.0)
    assert (after["labels"], after["mean"]) == (2, 0.5)


def test_what_is_kept_has_bounds(start: Any, tmp_path: Path) -> None:
    running = serve(start, tmp_path, "feedback: {keep: 1 h, limit: 3}", answers=None)
    for number in range(5):
        infer(running, f"n{number}")
    feedback = [{"id": f"n{number}", "score": 1} for number in range(4)]
    assert send(running, "POST", PAGE, feedback).json["unknown"] == ["n0", "n1"]
    file = tmp_path / "digits.yaml"
    file.write_text(FILE.format(more="feedback: {keep: 1 us}"))
    running.wait(running.server.apply(inferway.load(file)))
    assert send(running, "POST", PAGE, {"id": "n4", "score": 1}).json["unknown"] == ["n4"]


def test_another_model_begins_anew_and_it_is_turned_off(
    start: Any, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    running = serve(start, tmp_path)
    file = tmp_path / "digits.yaml"
    infer(running, "old")
    infer(running, "other")
    send(running, "POST", PAGE, {"id": "old", "correct": True})
    assert accuracy(running)["labels"] == 1
    text = file.read_text()
    file.write_text(text.replace("zoo://digits/tiny", "zoo://digits/medium"))
    running.wait(running.server.apply(inferway.load(file)))
    until(lambda: accuracy(running)["labels"] == 0)
    # It was the other model's.
    assert send(running, "POST", PAGE, {"id": "other", "correct": True}).json["matched"] == 1
    assert accuracy(running)["labels"] == 0
    file.write_text(FILE.format(more=""))
    running.wait(running.server.apply(inferway.load(file)))
    infer(running, "unkept")
    assert send(running, "POST", PAGE, {"id": "unkept", "correct": True}).status == 404


def test_without_keys_nobody_says_it(start: Any, tmp_path: Path) -> None:
    running = serve(start, tmp_path, keys=None)
    infer(running, "x")
    refused = send(running, "POST", PAGE, {"id": "x", "correct": True}, key="")
    assert refused.status == 403
    assert "feedback=KEY" in refused.json["error"]


FOLLOWING = """
tasks:
  digits:
    accuracy_target: {{mean: {target}, by: {by}}}
    feedback: {{}}
    variants:
      tiny: {{model: zoo://digits/tiny, accuracy: 0.8}}
      medium: {{model: zoo://digits/medium, accuracy: 0.94}}
      large: {{model: zoo://digits/large, accuracy: 0.96}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/medium: 1, digits/large: 1}}, buffer: 64}}
dispatch: {{policy: priced}}
"""


def answers(running: Any, name: str, count: int, variant: str = "") -> dict[str, str]:
    """Ask so often under numbered names, maybe one variant; who has answered, by name."""
    pinned = f"/versions/{variant}" if variant else ""
    image = load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = json.dumps({"inputs": [tensor | {"data": image.ravel().tolist()}]}).encode()
    found = {}
    for number in range(count):
        more = f"X-Request-Id: {name}-{number}\r\n"
        path = f"/v2/models/digits{pinned}/infer"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ASKS}\r\n"
        head += f"Content-Length: {len(body)}\r\n{more}\r\n"
        found[f"{name}-{number}"] = running.ask(head.encode() + body).json["model_version"]
    return found


@pytest.mark.parametrize("by", ["measured", "profile"])
def test_a_promise_on_what_is_measured_follows_it_and_is_replayed(
    start: Any, tmp_path: Path, until: Callable[[Callable[[], bool]], None], by: str
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FOLLOWING.format(by=by, target=0.93))
    options = {"keys": Keys(KEYS), "answers": tmp_path / "answers", "record": tmp_path / "run"}
    running = start(deployment=inferway.load(file), **options)

    def told() -> Any:
        return send(running, "GET", "/status", key=ASKS, admin=True).json["tasks"]["digits"]

    assert told()["promise"]["by"] == by
    # The most accurate one is wrong from now on, as labels say.
    wrong = answers(running, "pinned", 600, "large")
    assert set(wrong.values()) == {"large"}
    feedback = [{"id": name, "correct": False} for name in wrong]
    assert send(running, "POST", PAGE, feedback).json["matched"] == 600
    large = send(running, "GET", "/v2/models/digits/accuracy", key=ASKS).json["variants"]["large"]
    assert (large["profile"], large["labels"], large["estimate"]) == (0.96, 600, 0.0)
    if by == "profile":
        assert told()["variants"]["large"]["accuracy"] == 0.96
    else:
        until(lambda: told()["variants"]["large"]["accuracy"] == 0.0)
    before = told()["accuracy_balance"]
    asked = list(answers(running, "asked", 300).values())
    served = {name: asked.count(name) for name in ("tiny", "medium", "large")}
    counts = {"tiny": 0.8, "medium": 0.94, "large": 0.96 if by == "profile" else 0.0}
    moved = sum((counts[name] - 0.93) * count for name, count in served.items())
    assert told()["accuracy_balance"] - before == pytest.approx(moved, abs=1e-6)
    if by == "measured":
        assert served["large"] <= 3  # one in a hundred, for its labels
        assert served["medium"] > 200
        # So it is after a restart.
        running.wait(running.server.stop())
        again = start(deployment=inferway.load(file), **options | {"record": None})
        until(
            lambda: (
                send(again, "GET", "/status", key=ASKS, admin=True).json["tasks"]["digits"][
                    "variants"
                ]["large"]["accuracy"]
                == 0.0
            )
        )
    else:
        running.wait(running.server.stop())
    found = inferway.replay(tmp_path / "run" / "digits", requests=None)
    assert (found.requests, found.differences) == (900, ())


def test_labels_that_fall_raise_an_alarm_and_begin_the_mean_anew(
    start: Any,
    tmp_path: Path,
    until: Callable[[Callable[[], bool]], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("river.drift", reason="alarms need river: pip install 'inferway[drift]'")
    where = "/v2/models/digits/accuracy"
    more = f"{ON}\n    drift: {{}}"
    first = serve(start, tmp_path, more, log_level="warning")

    def told(running: Any) -> dict[str, float]:
        text = send(running, "GET", "/metrics", key=ASKS, admin=True).body.decode()
        return {
            one.name: one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if "drift" in one.name and not one.name.endswith("created")
        }

    names = list(answers(first, "asked", 500))
    good = [{"id": name, "correct": True} for name in names[:384]]
    assert send(first, "POST", PAGE, good).json["matched"] == 384
    assert (accuracy(first)["alarms"], accuracy(first)["alarm"]) == (0, None)
    assert told(first) == {"inferway_drift_alarms_total": 0}
    bad = [{"id": name, "correct": False} for name in names[384:]]
    assert send(first, "POST", PAGE, bad).json["matched"] == 116
    now = accuracy(first)
    assert now["alarms"] == 1
    alarm = now["alarm"]
    assert alarm["before"] == pytest.approx(1.0, abs=0.01)
    assert alarm["after"] == pytest.approx(0.0, abs=0.01)
    assert 384 < alarm["labels"] < 500
    # The mean is of what came after it, the number of labels of all; the estimate has forgotten.
    assert (now["labels"], now["mean"]) == (500, 0.0)
    assert now["high"] < 0.2
    assert now["estimate"] < 0.5
    expected = {"inferway_drift_alarms_total": 1}
    expected["inferway_drift_alarm_timestamp_seconds"] = alarm["at"]
    assert told(first) == expected
    (line,) = [one for one in capfd.readouterr().err.splitlines() if '"drift"' in one]
    logged = json.loads(line)
    assert (logged["level"], logged["task"], logged["variant"]) == ("warning", "digits", "tiny")
    assert (logged["before"], logged["labels"]) == (round(alarm["before"], 4), alarm["labels"])
    tasks = send(first, "GET", "/status", key=ASKS, admin=True).json["tasks"]
    assert tasks["digits"]["feedback"]["variants"]["tiny"] == now
    html = "Accept: text/html\r\n"
    page = send(first, "GET", "/", key=ASKS, more=html, admin=True).body.decode()
    assert f"{alarm['before']:.3f} to {alarm['after']:.3f} (" in page
    first.wait(first.server.stop())
    second = serve(start, tmp_path, more)
    until(lambda: send(second, "GET", where, key=ASKS).json["variants"] != {})
    again = accuracy(second)
    assert (again["alarms"], again["alarm"], again["labels"]) == (1, alarm, 500)
    assert told(second) == expected


CANARY = """
tasks:
  digits:
    accuracy_target: 0.9
    feedback: {{}}
    {more}
    variants:
      tiny: {{model: zoo://digits/tiny, accuracy: 0.8}}
      medium: {{model: zoo://digits/medium, accuracy: 0.94}}
      large: {{model: zoo://digits/large, accuracy: 0.96}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/medium: 1, digits/large: 1}}, buffer: 64}}
dispatch: {{policy: priced}}
"""


@pytest.mark.parametrize("good", [True, False])
def test_a_canary_gets_its_share_until_labels_decide_on_it(
    start: Any,
    tmp_path: Path,
    until: Callable[[Callable[[], bool]], None],
    capfd: pytest.CaptureFixture[str],
    good: bool,
) -> None:
    file = tmp_path / "digits.yaml"
    terms = "{variant: large, share: 20 %, labels: 50, at_least: 0.9}"
    file.write_text(CANARY.format(more=f"canary: {terms}"))
    options = {"keys": Keys(KEYS), "answers": tmp_path / "answers"}
    running = start(
        deployment=inferway.load(file), record=tmp_path / "run", log_level="info", **options
    )

    def told(server: Any) -> Any:
        tasks = send(server, "GET", "/status", key=ASKS, admin=True).json["tasks"]
        return tasks["digits"]

    def states(server: Any) -> dict[str, float]:
        text = send(server, "GET", "/metrics", key=ASKS, admin=True).body.decode()
        return {
            one.labels["state"]: one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == "inferway_canary_state"
        }

    asked = answers(running, "asked", 500)
    own = [name for name, variant in asked.items() if variant == "large"]
    assert 60 < len(own) < 140  # of 500 a fifth, whatever the policy
    now = told(running)["canary"]
    assert (now["state"], now["requests"]) == ("trying", len(own))
    assert states(running) == {"trying": 1, "promoted": 0, "taken-back": 0}
    where = "/v2/models/digits/accuracy"
    assert send(running, "GET", where, key=ASKS).json["canary"] == now
    html = "Accept: text/html\r\n"

    def row() -> list[str]:
        page = send(running, "GET", "/", key=ASKS, more=html, admin=True).body.decode()
        rows = page[page.index("<caption>Canary</caption>") :].split("<tr>")[2]
        return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", rows)

    needs = "at least 0.9 by 50 labels"
    assert row() == ["large", "20 % of the requests", needs, str(len(own)), "trying", "-"]
    # What the others owe or have ahead is the balance of all.
    counts = {"tiny": 0.8, "medium": 0.94, "large": 0.96}
    moved = sum(counts[variant] - 0.9 for variant in asked.values())
    assert told(running)["accuracy_balance"] == pytest.approx(moved, abs=1e-6)
    feedback = [{"id": name, "correct": good or k % 5 > 0} for k, name in enumerate(own[:49])]
    send(running, "POST", PAGE, feedback)
    assert told(running)["canary"]["state"] == "trying"
    send(running, "POST", PAGE, {"id": own[49], "correct": True})
    state = "promoted" if good else "taken-back"
    until(lambda: told(running)["canary"]["state"] == state)
    reason = told(running)["canary"]["reason"]
    assert reason.startswith("50 labels say 1.0000, which is at least" if good else "50 labels say")
    logged = [json.loads(one) for one in capfd.readouterr().err.splitlines() if "canary" in one]
    assert [one["reason"] for one in logged if one["event"].startswith("canary")] == [reason]
    assert states(running)[state] == 1
    assert send(running, "GET", where, key=ASKS).json["canary"] == told(running)["canary"]
    assert row()[4:] == [state, reason]
    after = list(answers(running, "after", 100).values())
    head = "POST /v2/models/digits/versions/large/infer HTTP/1.1\r\nHost: x\r\n"
    pinned = answer_to(running, head)
    if good:
        assert pinned.status == 200
    else:
        assert "large" not in after
        assert pinned.status == 503
        assert "variant 'large' has been taken back: 50 labels say" in pinned.json["error"]
    running.wait(running.server.stop())
    found = inferway.replay(tmp_path / "run" / "digits", requests=None)
    assert found.differences == ()
    again = start(deployment=inferway.load(file), **options)
    assert (told(again)["canary"]["state"], told(again)["canary"]["reason"]) == (state, reason)
    # Other terms are another trial, which the labels that there are decide.
    file.write_text(CANARY.format(more=f"canary: {terms}".replace("0.9}", "0.5}")))
    again.wait(again.server.apply(inferway.load(file)))
    until(lambda: told(again)["canary"]["state"] == "promoted")
    # Without one the variant is like others.
    file.write_text(CANARY.format(more=""))
    again.wait(again.server.apply(inferway.load(file)))
    assert "canary" not in told(again)
    assert "canary" not in send(again, "GET", where, key=ASKS).json
    assert answer_to(again, head).status == 200
    assert states(again) == {}


def answer_to(running: Any, head: str) -> Any:
    """Ask for one picture, with this beginning of the request's head."""
    image = load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = json.dumps({"inputs": [tensor | {"data": image.ravel().tolist()}]}).encode()
    more = f"Authorization: Bearer {ASKS}\r\nContent-Length: {len(body)}\r\n\r\n"
    return running.ask(f"{head}{more}".encode() + body)
