"""Draw the sprite sheets of ``pixalign.scenes`` from their two sources (build time only).

    python tools/build_sprites.py \
        --noto /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf \
        --fluent fluent-emoji-3d/package/assets \
        --out src/pixalign/scenes/data

The font is Debian's fonts-noto-color-emoji; the folder is npm's @lobehub/fluent-emoji-3d 1.1.0,
unpacked: one WebP per emoji, named by its code point.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL = 128
MARGIN = 3
COLUMNS = 12
QUALITY = 88

# name: code point: plural where it is not name + "s"
CLASSES = """
dog: 1f415, cat: 1f408, tiger: 1f405, leopard: 1f406, horse: 1f40e, cow: 1f404,
pig: 1f416, sheep: 1f411: sheep, camel: 1f42a, elephant: 1f418, rabbit: 1f407,
mouse: 1f401: mice, kangaroo: 1f998, hedgehog: 1f994, squirrel: 1f43f-fe0f, bat: 1f987,
bird: 1f426, duck: 1f986, rooster: 1f413, chick: 1f425, penguin: 1f427, owl: 1f989, parrot: 1f99c,
turtle: 1f422, crocodile: 1f40a, snake: 1f40d, dinosaur: 1f995, whale: 1f433, dolphin: 1f42c,
shark: 1f988, tropical fish: 1f420: tropical fish, octopus: 1f419: octopuses, crab: 1f980,
snail: 1f40c, butterfly: 1f98b: butterflies, bee: 1f41d, ladybug: 1f41e,
palm tree: 1f334, pine tree: 1f332, cactus: 1f335: cacti, sunflower: 1f33b, rose: 1f339,
tulip: 1f337, mushroom: 1f344,
apple: 1f34e, tomato: 1f345: tomatoes, cherry: 1f352: cherries,
strawberry: 1f353: strawberries, tangerine: 1f34a, lemon: 1f34b, banana: 1f34c, pineapple: 1f34d,
watermelon: 1f349, pear: 1f350, grapes: 1f347: grapes, carrot: 1f955, corn: 1f33d: corn,
broccoli: 1f966: broccoli, eggplant: 1f346, avocado: 1f951, hot dog: 1f32d, hamburger: 1f354,
pizza: 1f355, french fries: 1f35f: french fries, taco: 1f32e, croissant: 1f950, pretzel: 1f968,
cheese: 1f9c0: cheeses, ice cream: 1f366: ice creams, birthday cake: 1f382, cupcake: 1f9c1,
doughnut: 1f369, cookie: 1f36a,
car: 1f697, taxi: 1f695: taxis, bus: 1f68c: buses, police car: 1f693, fire truck: 1f692,
tractor: 1f69c, bicycle: 1f6b2, motor scooter: 1f6f5, helicopter: 1f681, airplane: 2708-fe0f,
rocket: 1f680, sailboat: 26f5,
traffic light: 1f6a6, umbrella: 2602-fe0f, alarm clock: 23f0, light bulb: 1f4a1, candle: 1f56f-fe0f,
book: 1f4d5, key: 1f511, hammer: 1f528, scissors: 2702-fe0f: scissors, guitar: 1f3b8,
trumpet: 1f3ba, drum: 1f941, camera: 1f4f7, television: 1f4fa, laptop: 1f4bb, telephone: 260e-fe0f,
soccer ball: 26bd, basketball: 1f3c0, chair: 1fa91, teddy bear: 1f9f8, balloon: 1f388,
backpack: 1f392, high heel: 1f460, top hat: 1f3a9, house: 1f3e0, snowman: 26c4: snowmen
"""


def classes() -> list[dict[str, str]]:
    """The classes in the order of the sheets."""
    rows = []
    for entry in CLASSES.split(","):
        name, code, *plural = (part.strip() for part in entry.split(":"))
        rows.append({"name": name, "plural": plural[0] if plural else name + "s", "code": code})
    return rows


def noto(font: ImageFont.FreeTypeFont, code: str) -> Image.Image:
    """One emoji of the font, RGBA; the font holds bitmaps of a single size."""
    text = "".join(chr(int(part, 16)) for part in code.split("-"))
    image = Image.new("RGBA", (160, 160))
    ImageDraw.Draw(image).text((10, 10), text, font=font, embedded_color=True)
    # Pillow blends the colours with the empty canvas, which leaves them premultiplied.
    pixels = np.asarray(image, dtype=np.float32)
    alpha = np.maximum(pixels[..., 3:] / 255, 1 / 255)
    colours = np.minimum(np.round(pixels[..., :3] / alpha), 255)
    return Image.fromarray(np.concatenate([colours, pixels[..., 3:]], axis=-1).astype(np.uint8))


def fitted(image: Image.Image) -> Image.Image:
    """The object alone, centred in a CELL x CELL picture with a small margin on each side."""
    box = image.getchannel("A").point(lambda alpha: 255 if alpha > 8 else 0).getbbox()
    if box is None:
        raise ValueError("the picture is empty")
    image = image.crop(box)
    scale = (CELL - 2 * MARGIN) / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    # Pillow resizes RGBA through premultiplied colours: no dark fringe.
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    cell = Image.new("RGBA", (CELL, CELL))
    cell.paste(image, ((CELL - width) // 2, (CELL - height) // 2))
    return cell


def sheet(cells: list[Image.Image]) -> Image.Image:
    """All cells in rows of COLUMNS, in the order of the classes."""
    picture = Image.new("RGBA", (COLUMNS * CELL, math.ceil(len(cells) / COLUMNS) * CELL))
    for index, cell in enumerate(cells):
        row, column = divmod(index, COLUMNS)
        picture.paste(cell, (column * CELL, row * CELL))
    return picture


def main() -> None:
    """Write noto.webp, fluent.webp and classes.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noto", type=Path, required=True, help="NotoColorEmoji.ttf")
    parser.add_argument("--fluent", type=Path, required=True, help="folder of WebP files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sheets")
    arguments = parser.parse_args()

    rows = classes()
    font = ImageFont.truetype(str(arguments.noto), 109)
    drawn = {
        "noto": [noto(font, row["code"]) for row in rows],
        "fluent": [
            Image.open(arguments.fluent / f"{row['code']}.webp").convert("RGBA") for row in rows
        ],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for style, images in drawn.items():
        path = arguments.out / f"{style}.webp"
        sheet([fitted(image) for image in images]).save(
            path, quality=QUALITY, alpha_quality=100, method=6
        )
        print(f"{path}: {len(images)} classes, {path.stat().st_size} bytes")
    text = ",\n".join("  " + json.dumps(row) for row in rows)
    (arguments.out / "classes.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
