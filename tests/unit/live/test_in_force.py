"""What is told of the deployment in force, and what is not."""

from __future__ import annotations

from inferway.live.in_force import difference, told

SECRET = "nobody-is-to-see-this"


def test_no_secret_is_told_and_what_is_left_out_is_named() -> None:
    content, left_out = told(
        {
            "tasks": {
                "keyboard": {
                    "variants": {
                        "own": {
                            "python": {
                                "class": "./mine.py:Model",
                                "environment": {"HF_TOKEN": SECRET, "OMP_NUM_THREADS": 4},
                            }
                        },
                        "far": {"remote": {"url": "http://a:1/v2/models/x", "key": "THE_KEY"}},
                        "odd": {"model": f"https://user:{SECRET}@host/model.onnx"},
                        "sas": {"model": f"https://host/model.onnx?sig={SECRET}"},
                        "gpu": {"providers": [{"VitisAI": {"encryption_key": SECRET, "id": 0}}]},
                        "two": {"providers": [f"https://host/?{SECRET}", "CPUExecutionProvider"]},
                    }
                }
            },
            "dispatch": {"policy": "./mine.py:Mine", "password": SECRET, "tokens": 3},
            "nodes": {"here": {"instances": {"keyboard/own": 2}}},
        }
    )
    assert SECRET not in repr(content)
    variants = content["tasks"]["keyboard"]["variants"]
    assert variants["own"]["python"] == {"class": "./mine.py:Model", "environment": {}}
    assert variants["far"]["remote"] == {"url": "http://a:1/v2/models/x", "key": "THE_KEY"}
    assert variants["gpu"]["providers"] == [{"VitisAI": {"id": 0}}]
    assert variants["two"]["providers"] == ["", "CPUExecutionProvider"]
    assert content["dispatch"] == {"policy": "./mine.py:Mine", "tokens": 3}
    assert content["nodes"] == {"here": {"instances": {"keyboard/own": 2}}}
    own = "tasks.keyboard.variants"
    assert left_out == [
        f"{own}.own.python.environment.HF_TOKEN",
        f"{own}.own.python.environment.OMP_NUM_THREADS",
        f"{own}.odd.model",
        f"{own}.sas.model",
        f"{own}.gpu.providers[0].VitisAI.encryption_key",
        f"{own}.two.providers[0]",
        "dispatch.password",
    ]


def test_a_difference_names_fields_and_hides_secrets() -> None:
    def file(token: str, target: float, **more: object) -> dict[str, object]:
        own = {"python": {"class": "./mine.py:M", "environment": {"TOKEN": token}}}
        return {"tasks": {"digits": {"accuracy_target": target, "variants": {"own": own}}}, **more}

    assert difference(file("a", 0.5), file("a", 0.5)) == []
    before = file("a", 0.5, workload={"digits": {"sizes": [1, 2]}})
    after = file(SECRET, 0.6, dispatch={"policy": "x", "api_key": SECRET})
    found = difference(before, after)
    assert SECRET not in repr(found)
    assert [tuple(one.values()) for one in found] == [
        ("tasks.digits.accuracy_target", 0.5, 0.6, False),
        ("tasks.digits.variants.own.python.environment.TOKEN", None, None, True),
        ("workload", {"digits": {"sizes": [1, 2]}}, None, False),
        ("dispatch", None, {"policy": "x"}, False),
    ]
