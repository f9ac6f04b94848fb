"""The zoos: ladders of real models with measured profiles, named by ``zoo://ZOO/VARIANT``.

A zoo is a folder with ``profiles.json``, the model files that it names and ``testset.npz``. One
ships in the package, its profiles packed and its larger models in one archive. What was measured or
built on this machine lies in the user's data folder and takes precedence, as service times hold for
the machine that they were measured on.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.catalog.profile import (
    MachineTimes,
    PairBins,
    ProfiledAccuracy,
    ProfiledData,
    TaskProfile,
    VariantProfile,
)
from inferway.files import home_folder, write_whole
from inferway.machine import machine_hash
from inferway.unreadable import UNREADABLE, fault


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant of a zoo.

    Attributes
    ----------
    name
        The variant.
    file
        Its model file's name, beside the profiles.
    parameters
        Number of trained weights.
    measured
        What `inferway profile` measures, on the zoo's test set.
    peaks
        Memory that a run takes beyond that of the loaded instance: pairs of rows and bytes.
    """

    name: str
    file: str
    parameters: int
    measured: VariantProfile
    peaks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.measured.accuracy is None or self.measured.size_bytes is None:
            raise ValueError(f"{self.name} has no accuracy or no size")
        if not self.measured.machines:
            raise ValueError(f"{self.name} has no service times")

    @property
    def digest(self) -> str:
        """Hash of the file, as ``sha256:`` and 64 hexadecimal digits."""
        return self.measured.model

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0..1, on the half of the test set that is for accuracies."""
        return self._accuracy.value

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """Lower and upper end of the accuracy's 95 % interval."""
        return self._accuracy.interval

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        assert self.measured.size_bytes is not None  # as `__post_init__` sees
        return self.measured.size_bytes

    @property
    def times(self) -> MachineTimes:
        """Times and memory on this machine, else of the one that it was first measured on."""
        machines = self.measured.machines
        return machines.get(machine_hash()) or next(iter(machines.values()))

    @property
    def mean_s(self) -> float:
        """Steady service time at batch 1, in seconds."""
        return self.times.alone[0].steady_s

    @property
    def _accuracy(self) -> ProfiledAccuracy:
        assert self.measured.accuracy is not None  # as `__post_init__` sees
        return self.measured.accuracy


SCHEMA: Final = 2
SCHEME: Final = "zoo://"
PROFILES: Final = "profiles.json"
_PACKED: Final = f"{PROFILES}.xz"
TESTSET: Final = "testset.npz"
ARCHIVE: Final = "large.tar.xz"
"""Models and tests that are not files of their own; see `inferway.catalog.archive`."""
INPUT: Final = "image"  # of all models

_SHIPPED: Final = {"digits": Path(__file__).parent / "digits" / "data"}


class CatalogError(ValueError):
    """An unknown zoo or variant, or a zoo's folder that cannot be read."""


@dataclass(frozen=True, slots=True)
class Zoo:
    """All that is known of one zoo.

    Attributes
    ----------
    name
        As in ``zoo://NAME/variant``.
    origin
        ``shipped`` with the package, ``measured`` or ``built`` on this machine.
    profiles
        By variant, fastest first.
    data
        The test set as it was split and scored.
    pairs
        Accuracies of two variants by the confidence of the first one.
    machines
        Processor, cores and system, by their hash.
    steps
        For each variant but the fastest, what it gains over the one before: ``{"from", "to",
        "gain", "interval", "p"}``, on the whole test set; `p` is one-sided.
    ablation
        What the slowest variant loses when parts are taken from it, entries as in `steps`.
    made
        Machine, seed, versions and cost of the build.
    folders
        Where its files are looked for, in this order.
    """

    name: str
    origin: str
    profiles: Mapping[str, Profile]
    data: ProfiledData
    pairs: tuple[PairBins, ...] = ()
    machines: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    ablation: tuple[Mapping[str, Any], ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def measured(self) -> TaskProfile:
        """The variants as those of a task."""
        variants = {name: one.measured for name, one in self.profiles.items()}
        return TaskProfile(self.data, variants, self.pairs)

    def file(self, name: str) -> Path:
        """Find one of the zoo's files.

        Raises
        ------
        CatalogError
            When no folder of the zoo has it.
        """
        for folder in self.folders:
            if (folder / name).is_file():
                return folder / name
        # Here, as most that starts opens no larger model.
        from inferway.catalog.archive import unpacked_file

        for folder in self.folders:
            if (folder / ARCHIVE).is_file():
                kept = unpacked_file(folder / ARCHIVE, name)
                if kept.is_file():
                    return kept
        raise CatalogError(f"the zoo {self.name!r} has lost its file {name}: reinstall inferway")

    def to_json(self) -> dict[str, Any]:
        """Plain data, as ``profiles.json`` holds it."""
        return {
            "schema": SCHEMA,
            "zoo": self.name,
            "data": msgspec.to_builtins(self.data),
            "profiles": msgspec.to_builtins(list(self.profiles.values())),
            "pairs": msgspec.to_builtins(self.pairs),
            "machines": dict(self.machines),
            "steps": list(self.steps),
            "ablation": list(self.ablation),
            "made": dict(self.made),
        }


@dataclass(frozen=True, slots=True)
class TestSet:
    """Labeled images that no choice was made on.

    Attributes
    ----------
    images
        float32 of shape [N, 1, S, S], 0..1.
    labels
        int64 of shape [N], 0..9.
    source
        int64 of shape [N]: which original image each one was made from. Images of one source are
        alike, so statistics resample sources, not images.
    """

    __test__ = False  # a name that pytest would collect

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    source: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def names() -> tuple[str, ...]:
    """Name all zoos."""
    return tuple(_SHIPPED)


def user_folder(zoo: str = "digits") -> Path:
    """Tell where profiles measured and zoos built on this machine go."""
    return home_folder("data") / "zoo" / zoo


def load(zoo: str = "digits") -> Zoo:
    """Read a zoo's profiles; no model is opened.

    Raises
    ------
    CatalogError
        When there is no such zoo or its profiles cannot be read.
    """
    if zoo not in _SHIPPED:
        raise CatalogError(f"there is no zoo {zoo!r}; there is {', '.join(_SHIPPED)}")
    shipped, own = _SHIPPED[zoo], user_folder(zoo)
    if not _profiles_in(own).is_file():
        return read(zoo, (shipped,), "shipped")
    built = read(zoo, (own, shipped), "built")
    if all((own / profile.file).is_file() for profile in built.profiles.values()):
        return built
    # Measured here: holds only for the models and images that it was measured on. After an update
    # of the package with others, the shipped profiles are right and the measured ones are stale.
    original = read(zoo, (shipped,), "shipped")
    digests, shipped_digests = (
        {name: profile.digest for name, profile in one.profiles.items()} | {"": one.data.digest}
        for one in (built, original)
    )
    return replace(built, origin="measured") if digests == shipped_digests else original


def kept_profiles(zoo: str = "digits") -> Path | None:
    """Find the file of the profiles that were measured on this machine, where these are in use.

    Raises
    ------
    CatalogError
        As `load`.
    """
    return None if load(zoo).origin == "shipped" else user_folder(zoo) / PROFILES


def profiles(zoo: str = "digits") -> dict[str, Profile]:
    """Tell what is known of each variant, fastest first; errors as `load`."""
    return dict(load(zoo).profiles)


def model_path(zoo: str, variant: str | None = None) -> Path:
    """Find a variant's model file, by ``("digits", "tiny")`` or ``"zoo://digits/tiny"``.

    Raises
    ------
    CatalogError
        When there is no such zoo or variant.
    """
    return resolve(zoo if variant is None else f"{SCHEME}{zoo}/{variant}")[0]


def resolve(uri: str) -> tuple[Path, Profile]:
    """Find the model file and the profile behind ``zoo://ZOO/VARIANT``.

    Raises
    ------
    CatalogError
        When the URI has another form, or there is no such zoo or variant.
    """
    zoo, slash, variant = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not slash or not zoo or not variant:
        raise CatalogError(f"{uri!r} is not of the form zoo://ZOO/VARIANT, as zoo://digits/tiny")
    loaded = load(zoo)
    profile = loaded.profiles.get(variant)
    if profile is None:
        raise CatalogError(
            f"the zoo {zoo!r} has no variant {variant!r}; it has {', '.join(loaded.profiles)}"
        )
    return loaded.file(profile.file), profile


def testset(zoo: str = "digits") -> TestSet:  # noqa: PT028 - not a test
    """Load a zoo's test set; errors as `load`."""
    with np.load(load(zoo).file(TESTSET), allow_pickle=False) as file:
        images = file["images"].astype(np.float32)
        labels, source = file["labels"].astype(np.int64), file["source"].astype(np.int64)
    images /= np.float32(255)
    return TestSet(images[:, None], labels, source)


def save(zoo: Zoo, folder: Path) -> None:
    """Write a zoo's profiles to a folder, whole or not at all."""
    write_whole(folder / PROFILES, json.dumps(zoo.to_json(), separators=(",", ":")) + "\n")


def read(zoo: str, folders: tuple[Path, ...], origin: str) -> Zoo:
    """Read the profiles in the first of some folders.

    Raises
    ------
    CatalogError
        When they cannot be read.
    """
    path = _profiles_in(folders[0])
    try:
        status = path.stat()
        return _read(zoo, folders, origin, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise CatalogError(f"{path}: cannot read the profiles: {error.strerror}") from error


def _profiles_in(folder: Path) -> Path:
    plain, packed = folder / PROFILES, folder / _PACKED
    return packed if packed.is_file() and not plain.is_file() else plain


@lru_cache(maxsize=16)
def _read(zoo: str, folders: tuple[Path, ...], origin: str, changed_ns: int, size: int) -> Zoo:
    """Read profiles once for as long as their file is not written anew."""
    path = _profiles_in(folders[0])
    try:
        written = path.read_bytes()
        data = json.loads(lzma.decompress(written) if path.name == _PACKED else written)
        if data["schema"] != SCHEMA:
            raise CatalogError(
                f"{path}: schema {data['schema']} is not {SCHEMA}; remove the file, and measure "
                "again if it was measured here"
            )
        measured = msgspec.convert(data["profiles"], list[Profile])
        return Zoo(
            name=zoo,
            origin=origin,
            profiles={p.name: p for p in sorted(measured, key=lambda p: p.mean_s)},
            data=msgspec.convert(data["data"], ProfiledData),
            pairs=msgspec.convert(data["pairs"], tuple[PairBins, ...]),
            machines=data["machines"],
            steps=tuple(data["steps"]),
            ablation=tuple(data["ablation"]),
            made=data["made"],
            folders=folders,
        )
    except (CatalogError, OSError):
        raise
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise CatalogError(
            f"{path}: the profiles are malformed ({type(error).__name__}: {fault(error)}); "
            "remove the file, and measure again if it was measured here"
        ) from error
