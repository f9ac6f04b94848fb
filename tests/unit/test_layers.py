"""Imports go one way. Every import counts: at the top, inside functions, for types only."""

from __future__ import annotations

from sources import PACKAGE, Import, all_imports, imports

# Each layer may import those before it. Layers in one row know nothing of each other.
LAYERS = (
    ("version", "extras", "files", "look", "machine", "spelling", "unreadable"),
    ("protocol",),
    ("runtime",),
    ("catalog",),
    ("deployment",),
    ("workload", "profiling"),
    ("site",),
    ("policies",),
    ("dispatch",),
    ("network",),
    ("scheduling", "placement"),
    ("twin", "live"),
    ("learning", "loadgen", "lab", "exporting", "ray"),
    ("experiments",),
    ("studies", "dashboard", "conformance"),
    ("cli",),
)
RANK = {layer: rank for rank, row in enumerate(LAYERS) for layer in row}


def layer(module: str) -> str | None:
    """Return the first folder below the package; None for the package itself."""
    parts = module.split(".")
    if parts[1:2] == ["__main__"]:
        return "cli"
    return parts[1] if len(parts) > 1 else None


def wrong_way(found: Import) -> str | None:
    """Say what is wrong with an import, if anything."""
    here, there = layer(found.module), layer(found.target)
    if here is None or here == there or found.target == "inferway" == found.module:
        return None
    if there is None:
        # The public face reaches down from above; nothing that it reaches may use it.
        above = RANK.get(here, 0) > RANK["experiments"]
        return None if above else "the public face is above this layer"
    for name in (here, there):
        if name not in RANK:
            return f"{name!r} is no layer; the layers are {', '.join(RANK)}"
    if RANK[there] == RANK[here]:
        return f"{here} and {there} never import each other"
    return f"{here} comes before {there}" if RANK[there] > RANK[here] else None


def place(found: Import) -> str:
    path = found.module.replace(".", "/")
    file = PACKAGE.parent / path
    return f"{path}/__init__.py" if file.is_dir() else f"{path}.py"


def first_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Find modules that import each other in a ring; empty if there is none."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for target in sorted(edges.get(module, ())):
            if ring := visit(target, [*trail, module]):
                return ring
        done.add(module)
        return []

    for module in sorted(edges):
        if ring := visit(module, []):
            return ring
    return []


def test_imports_go_one_way() -> None:
    broken = [
        f"{place(found)}:{found.line}: imports {found.target}: {reason}"
        for found in all_imports()
        if (reason := wrong_way(found)) is not None
    ]
    assert not broken, "\n".join(broken)


def test_no_module_needs_itself_to_be_imported() -> None:
    edges: dict[str, set[str]] = {}
    for found in all_imports():
        if found.eager and found.target != found.module:
            edges.setdefault(found.module, set()).add(found.target)
    assert not (ring := first_cycle(edges)), " -> ".join(ring)


def test_every_folder_is_a_layer() -> None:
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(RANK), folders - set(RANK)


KNOWN = frozenset({"inferway", "inferway.live", "inferway.live.server", "inferway.dispatch"})


def only(source: str, module: str) -> Import:
    (found,) = imports(source, module, KNOWN)
    return found


def test_a_lower_layer_may_not_import_a_higher_one_even_lazily() -> None:
    source = "def f():\n    from inferway.live import server\n"
    found = only(source, "inferway.dispatch")
    assert found == Import("inferway.dispatch", "inferway.live.server", 2, eager=False)
    assert wrong_way(found) == "dispatch comes before live"


def test_an_import_for_types_counts_but_is_not_eager() -> None:
    source = "if TYPE_CHECKING:\n    import inferway.live\n"
    found = only(source, "inferway.site.view")
    assert not found.eager
    assert wrong_way(found) == "site comes before live"


def test_twin_and_live_do_not_know_each_other() -> None:
    for here, there in (("twin", "live"), ("live", "twin")):
        found = Import(f"inferway.{here}.x", f"inferway.{there}.y", 1, eager=True)
        assert wrong_way(found) == f"{here} and {there} never import each other"


def test_only_studies_and_the_command_line_use_the_public_face() -> None:
    assert wrong_way(Import("inferway.cli.files", "inferway", 1, eager=False)) is None
    assert wrong_way(Import("inferway.__main__", "inferway.cli", 1, eager=True)) is None
    assert wrong_way(Import("inferway.live.server", "inferway", 1, eager=False)) is not None


def test_downward_imports_pass() -> None:
    found = only("from inferway.dispatch import Bound\n", "inferway.cli.files")
    assert found.target == "inferway.dispatch"
    assert wrong_way(found) is None


def test_a_ring_of_modules_is_found() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert first_cycle({"a": {"b", "c"}, "b": {"c"}}) == []
