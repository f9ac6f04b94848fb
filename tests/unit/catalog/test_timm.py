from __future__ import annotations

from pathlib import Path

import pytest

from inferway.catalog.published import CLASSIFIERS, accuracies, chosen, pareto, speed_tables
from inferway.catalog.published import read_timm as read
from inferway.catalog.zoo import CatalogError

RESULTS = """\
model,img_size,top1,top1_err,top5,top5_err,param_count,crop_pct,interpolation
giant.a_in1k,224,80.000,20,95,5,"1,014.45",1.000,bicubic
giant.b_in1k,224,81.500,18.5,95,5,"1,014.45",1.000,bicubic
giant.b_in1k,288,82.000,18,95,5,"1,014.45",1.000,bicubic
small,224,60.000,40,80,20,2.50,1.000,bicubic
"""
SPEED = """\
model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count
small,224,500.0,2.0,1,2.50
giant,224,10.0,100.0,1,"1,014.45"
giant,384,5.0,200.0,1,"1,014.45"
unknown,224,10.0,100.0,1,3.0
"""
CPU = "benchmark-infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo.csv"
GPU = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results-imagenet.csv").write_text(RESULTS)
    (tmp_path / CPU).write_text(SPEED)
    (tmp_path / GPU).write_text(SPEED.replace("500.0", "50000.0"))
    return tmp_path


@pytest.fixture
def timm(root: Path) -> Path:
    folder = root.parent / "shared" / "data" / "timm"
    if not folder.is_dir():
        pytest.skip(f"timm's results are not in {folder}")
    return folder


def test_what_has_both_an_accuracy_and_a_speed_is_read(folder: Path) -> None:
    small, giant = read(folder)
    assert (small.name, small.accuracy, small.size_bytes) == ("small-224", 0.6, 10_000_000)
    assert small.mean_s == {"i9_10940x": 1 / 500, "rtx3090": 1 / 50000}
    # The best weights at that size, and 1,014.45 million parameters.
    assert (giant.name, giant.accuracy, giant.size_bytes) == ("giant-224", 0.815, 4_057_800_000)
    assert [set(entry.mean_s) for entry in read(folder, "rtx3090")] == [{"rtx3090"}] * 2


def test_the_newest_speed_table_of_a_hardware_counts(folder: Path) -> None:
    (folder / GPU.replace("pt240", "pt112")).write_text("")
    (folder / "benchmark-train-amp-nhwc-pt240-cu124-rtx3090.csv").write_text("")
    assert speed_tables(folder) == {"i9_10940x": folder / CPU, "rtx3090": folder / GPU}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("results-imagenet.csv", None, r"results-imagenet\.csv cannot be read"),
        ("results-imagenet.csv", "a,b\n1,2\n", "has no column img_size, model, top1"),
        ("results-imagenet.csv", RESULTS.replace("60.000", "high"), "line 5: top1 is 'high'"),
        ("results-imagenet.csv", RESULTS.replace("60.000", "600"), "line 5: a top-1 accuracy of"),
        (GPU, SPEED.replace("500.0", "0"), r"line 2: 0 images/s is not a speed"),
        (GPU, SPEED.replace("small,224,500.0,2.0,1,2.50", "small,224"), "line 2 is cut short"),
        (GPU, "", "has no column"),
        (GPU, b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_refused(folder: Path, name: str, text: str | bytes | None, sentence: str) -> None:
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CatalogError, match=sentence):
        read(folder)


def test_an_unknown_hardware_or_an_empty_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"no speed table for t4 \(known: i9_10940x, rtx3090\)"):
        read(folder, "t4")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CatalogError, match="holds no speed tables"):
        read(tmp_path / "empty")


def test_timm_s_own_files(timm: Path) -> None:
    entries = read(timm)
    assert len(entries) == 1091
    pnasnet, efficientnet = chosen(entries, ("PNASNet-5-Large", "EfficientNet-B0"))
    assert (pnasnet.accuracy, pnasnet.mean_s) == (0.82814, {"i9_10940x": 1 / 11.25})
    assert efficientnet.mean_s["rtx3090"] == 1 / 6246.01
    assert len(pareto(read(timm, "rtx3090"))) == 36
    second = accuracies(timm / "results-imagenetv2-matched-frequency.csv")
    assert second["eva02_large_patch14_448", "448"] == 0.8277


def test_the_built_in_table_says_what_timm_s_files_say(timm: Path) -> None:
    entries = {entry.name: entry for entry in read(timm)}
    front = {entry.name for entry in pareto(read(timm, "rtx3090"))}
    for one in CLASSIFIERS:
        other = entries[one.name]
        assert (one.accuracy, one.size_bytes) == (other.accuracy, other.size_bytes)
        assert one.mean_s == pytest.approx(other.mean_s, rel=2e-3)
        assert one.name in front
    left_out = front - {entry.name for entry in CLASSIFIERS}
    assert all(name.startswith(("test_", "levit_conv_")) for name in left_out)
