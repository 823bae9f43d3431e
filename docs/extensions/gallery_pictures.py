"""Pictures that an example shows (``Image.show``) become pictures of its page."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageShow
from sphinx_gallery.scrapers import figure_rst


class Kept(ImageShow.Viewer):
    """A viewer that keeps what it is shown."""

    def __init__(self) -> None:
        self.pictures: list[Image.Image] = []

    def show(self, image: Image.Image, **options: Any) -> bool:
        """True: no other viewer is asked."""
        self.pictures.append(image.copy())
        return True


_VIEWER = Kept()
ImageShow.register(_VIEWER, order=0)


def scraper(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The pictures of a block, written where the gallery wants them."""
    paths = []
    for picture, path in zip(_VIEWER.pictures, block_vars["image_path_iterator"], strict=False):
        picture.save(path)
        paths.append(path)
    _VIEWER.pictures.clear()
    return str(figure_rst(paths, gallery_conf["src_dir"]))
