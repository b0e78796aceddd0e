"""What reads the stores of running processes."""

import shutil
from pathlib import Path

from tests.files import contents


def test_what_goes_while_it_is_read_is_passed_over_and_all_else_is_read(tmp_path: Path) -> None:
    for name in ("a/1", "b/2", "c/3", "d/4"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    (tmp_path / "d" / "dangling").symlink_to(tmp_path / "nowhere")
    read = contents(tmp_path)
    assert next(read) == (tmp_path / "a/1", b"a/1")
    shutil.rmtree(tmp_path / "b")
    assert [content for _, content in read] == [b"c/3", b"d/4"]
