"""Sources of variants and their profiles."""

from inferway.catalog.zoo import (
    CatalogError,
    Profile,
    TestSet,
    Zoo,
    load,
    model_path,
    names,
    profiles,
    resolve,
    testset,
)

__all__ = [
    "CatalogError", "Profile", "TestSet", "Zoo", "load", "model_path", "names",
    "profiles", "resolve", "testset",
]  # fmt: skip
