"""Changes of a layer: what became of a path of the image.

Mutants seen caught: a folder in the place of a file taken for a change of it, folders told for
their time alone, folders with another mode or with changes not told.
"""

from pathlib import Path

from agentrl_sandbox.provider.namespaces.layer_changes import find_changes


def test_what_became_a_folder_or_was_one_is_deleted(tmp_path: Path) -> None:
    image, layer = tmp_path / "image", tmp_path / "layer"
    for folder in ("bin", "venv"):
        (image / folder).mkdir(parents=True)
    for name in ("bin/pytest", "bin/cmp", "venv/pyvenv.cfg"):
        (image / name).write_text("x")
    (layer / "bin/pytest").mkdir(parents=True)
    (layer / "bin/pytest/x").write_text("x")
    (layer / "bin/cmp").symlink_to("pytest")
    (layer / "venv").symlink_to("bin")
    assert {change.path: change.kind for change in find_changes(layer, [image])} == {
        "/bin": "modified",
        "/bin/pytest": "deleted",
        "/bin/pytest/x": "added",
        "/bin/cmp": "modified",
        "/venv": "deleted",
    }


def test_a_folder_that_differs_in_its_time_alone_is_not_told(tmp_path: Path) -> None:
    image, layer = tmp_path / "image", tmp_path / "layer"
    for root in (image, layer):
        for folder in ("usr/local/share", "opt/venv", "srv"):
            (root / folder).mkdir(parents=True)
    (layer / "opt/venv").chmod(0o700)
    (layer / "srv/new").mkdir()
    assert {change.path: change.kind for change in find_changes(layer, [image])} == {
        "/opt": "modified",
        "/opt/venv": "modified",
        "/srv": "modified",
        "/srv/new": "added",
    }
