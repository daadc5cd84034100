"""/etc of sandboxes: settings of programs in /usr, without what its user cannot read."""

import os

from arcforge_rl.sandbox import boxes


def test_settings_are_copied_as_far_as_they_can_be_read(tmp_path, monkeypatch):
    settings = tmp_path / "java-0-openjdk"
    (settings / "security").mkdir(parents=True)
    (settings / "security/java.security").write_text("x=1\n")
    (settings / "secret").write_text("y\n")
    (settings / "dangling").symlink_to("/nothing")
    monkeypatch.setattr(boxes, "SYSTEM_FILES", (str(settings), str(tmp_path / "absent")))
    may = os.access
    monkeypatch.setattr(boxes.os, "access", lambda path, mode: may(path, mode) and not path.endswith("secret"))
    boxes.make_etc(tmp_path / "etc")
    made = tmp_path / "etc/java-0-openjdk"
    assert (made / "security/java.security").read_text() == "x=1\n" and (made / "dangling").is_symlink()
    assert not (made / "secret").exists() and "verifier" in (tmp_path / "etc/passwd").read_text()
