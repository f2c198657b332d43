"""The check of long modules and functions finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.sizes import FUNCTION_LINES, MODULE_LINES, main, too_long


def function(lines: int, indent: str = "") -> str:
    return f"{indent}def f():\n" + f"{indent}    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("long.py", "x = 1\n" * (MODULE_LINES + 1), [("p/long.py", MODULE_LINES + 1)]),
        ("long.lua", "--\n" * (MODULE_LINES + 1), [("p/long.lua", MODULE_LINES + 1)]),
        ("fits.py", "x = 1\n" * MODULE_LINES, []),
        ("f.py", function(FUNCTION_LINES + 1), [("p/f.py:f", FUNCTION_LINES + 1)]),
        ("f.py", f"async {function(FUNCTION_LINES + 1)}", [("p/f.py:f", FUNCTION_LINES + 1)]),
        ("f.py", f"class C:\n{function(FUNCTION_LINES + 1, '    ')}", [("p/f.py:C.f", FUNCTION_LINES + 1)]),
        ("f.py", f"if True:\n{function(FUNCTION_LINES + 1, '    ')}", [("p/f.py:f", FUNCTION_LINES + 1)]),
        ("f.py", function(FUNCTION_LINES), []),
        ("f.py", function(FUNCTION_LINES).replace("\n", '\n    """One.\n\n    Two.\n    """\n', 1), []),
    ],
)
def test_it_finds_what_is_too_long(
    file: str, text: str, found: list[tuple[str, int]], tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / file).write_text(text)
    assert list(too_long(tmp_path, ("p",))) == found


def test_lint_fails_on_what_is_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tools.sizes.ROOT", tmp_path)
    (tmp_path / "p").mkdir()
    assert main(["p"]) == 0
    (tmp_path / "p" / "f.py").write_text(function(FUNCTION_LINES + 1))
    assert main(["p"]) == 1
    assert "p/f.py:f has 51 lines" in capsys.readouterr().err
