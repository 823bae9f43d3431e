"""Templates, and pictures inside pages."""

import base64
import io

import jinja2
import numpy as np
import pytest
from PIL import Image

import tiny
from pixalign.pictures.pages import data_uri, environment

SOURCE = "{% if true %}\n  {{ shout(text) }}\n{% endif %}\n"


def test_pages_are_escaped_and_documents_are_not():
    def render(html):
        templates = environment(html=html, shout=str.upper)
        return templates.from_string(SOURCE).render(text="<b>")

    assert render(html=True) == "  &lt;B&gt;\n"
    assert render(html=False) == "  <B>\n"
    last = "{{ text }}\n"
    assert environment(html=True).from_string(last).render(text="x") == "x"
    assert environment(html=False).from_string(last).render(text="x") == "x\n"


def test_unknown_names_are_errors():
    with pytest.raises(jinja2.UndefinedError, match="text"):
        environment(html=False).from_string("{{ text }}").render()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_an_address_holds_the_whole_picture(kind):
    image = tiny.photo(40, 30)
    head, data = data_uri(image, kind).split(",")
    assert head == f"data:image/{kind};base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as again:
        assert again.format.lower() == kind
        error = np.asarray(again.convert("RGB"), dtype=float) - np.asarray(image)
    assert np.abs(error).mean() <= (0 if kind == "png" else 8)
    assert data_uri(base64.b64decode(data), kind) == f"{head},{data}"
