"""What is told of the deployment in force, and what is not."""

from __future__ import annotations

from inferway.live.in_force import told

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
