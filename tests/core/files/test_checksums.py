import shutil
import subprocess
from pathlib import Path

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_core.files.checksums import SUMS, check_checksums, write_checksums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_bytes(bytes(range(200)))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "two words.json").write_text("{}")
    write_checksums(tmp_path)
    check_checksums(tmp_path)
    return tmp_path


def test_sha256sum_reads_the_sums(folder: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("needs sha256sum")
    done = subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 2


def test_every_flipped_byte_is_found_and_its_file_named(folder: Path) -> None:
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(CheckpointError) as caught:
                check_checksums(folder)
            assert path.name == SUMS or str(path) in str(caught.value)
        path.write_bytes(whole)
    check_checksums(folder)


@pytest.mark.parametrize("keep", [0, 50, 199])
def test_a_file_cut_short_is_named(folder: Path, keep: int) -> None:
    (folder / "weights").write_bytes(bytes(range(keep)))
    with pytest.raises(CheckpointError, match="weights is damaged"):
        check_checksums(folder)


def test_missing_and_foreign_files_are_named(folder: Path) -> None:
    (folder / ".DS_Store").touch()  # of a file manager
    check_checksums(folder)
    (folder / "more").touch()
    with pytest.raises(CheckpointError, match="more is not listed in SHA256SUMS"):
        check_checksums(folder)
    (folder / "more").unlink()
    (folder / "weights").unlink()
    with pytest.raises(CheckpointError, match="weights is missing"):
        check_checksums(folder)
    (folder / SUMS).unlink()
    with pytest.raises(CheckpointError, match="SHA256SUMS is missing or damaged"):
        check_checksums(folder)
