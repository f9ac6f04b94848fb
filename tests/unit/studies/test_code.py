from __future__ import annotations

from inferway.experiments import runner as code


def version_of(tmp_path, source):
    code._meaning.cache_clear()
    file = tmp_path / "policy.py"
    file.write_text(source)
    return code.version([file])


def test_only_what_the_code_does_counts(tmp_path):
    plain = version_of(tmp_path, "def f(x):\n    return x + 1\n")
    dressed = '"""A module."""\n\n\ndef f(x):\n    """Add."""\n    # one\n    return (x + 1)\n'
    assert version_of(tmp_path, dressed) == plain
    assert version_of(tmp_path, "def f(x):\n    return x + 2\n") != plain


def test_a_function_of_a_docstring_alone_still_parses(tmp_path):
    assert version_of(tmp_path, 'def f():\n    """Nothing."""\n')


def test_a_folder_counts_with_all_its_files(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("A = 1\n")
    before = code.version([tmp_path])
    (tmp_path / "deep" / "b.py").write_text("B = 1\n")
    assert code.version([tmp_path]) != before


def test_the_simulator_is_found_by_its_name():
    assert code.version(["dispatch"]) != code.version(["site"])
