"""Pages and documents from templates, and pictures inside them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from PIL import Image

from pixalign.pictures.saving import encoded

if TYPE_CHECKING:
    import jinja2


def environment(*, html: bool, **names: Any) -> jinja2.Environment:
    """Templates of HTML, which is escaped, or of text; ``names`` are known in all of them.

    An unknown name is an error, and so is what reaches for Python's inside.
    """
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    templates = SandboxedEnvironment(
        loader=jinja2.DictLoader({}),  # none includes another
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=html,
        keep_trailing_newline=not html,
    )
    templates.globals.update(names)
    return templates


def data_uri(picture: Image.Image | bytes, kind: str = "png") -> str:
    """A picture, or the bytes of its file, as the text of an address that holds it whole."""
    data = picture if isinstance(picture, bytes) else encoded(picture, kind)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
