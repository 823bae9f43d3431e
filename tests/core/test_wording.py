"""Words of messages."""

from pathlib import Path

import pytest

from pixalign.core.changes import check_unchanged
from pixalign.core.wording import counted, shortened


def test_one_is_not_many():
    assert [counted(n, "picture") for n in (0, 1, 2)] == ["0 pictures", "1 picture", "2 pictures"]


def test_long_texts_show_where_they_begin_and_end():
    assert shortened("short") == "short"
    text = f"begin{'x' * 5000}end"
    assert shortened(text).startswith("beginx")
    assert shortened(text).endswith("xend")
    assert len(shortened(text)) < 420


def test_what_changed_is_told_shortly():
    """A damaged header may hold any value."""
    with pytest.raises(ValueError, match="holds labels of another run") as told:
        check_unchanged({"a": {"b" * 9000: "c" * 9000}}, {"a": 1}, Path("out"), "labels")
    assert len(str(told.value)) < 900
