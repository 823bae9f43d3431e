"""Read annotations with other libraries, and write the masks that they see, for the tests.

python tools/read_annotations.py READER FOLDER OUT.npz, in the environment of `make external`. An
array bool [H, W] is called PICTURE|NUMBER|CLASS, in the order in which the library has them.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

Object = tuple[str, str, np.ndarray]  # picture, class, bool [H, W]


def datumaro_objects(folder: Path, form: str) -> Iterator[Object]:
    """What datumaro reads; of polygons the pixels that it fills."""
    from datumaro.components.annotation import AnnotationType, Mask, Polygon
    from datumaro.components.dataset import Dataset
    from pycocotools import mask as coco_mask

    dataset = Dataset.import_from(str(folder), form)
    names = [label.name for label in dataset.categories()[AnnotationType.label]]
    for item in dataset:
        height, width = item.media.size
        parts: dict[int, list[Polygon]] = {}
        for annotation in item.annotations:
            if isinstance(annotation, Mask):
                yield item.id, names[annotation.label], np.asarray(annotation.image, dtype=bool)
            elif isinstance(annotation, Polygon):
                parts.setdefault(annotation.group, []).append(annotation)
        for polygons in parts.values():
            points = [list(polygon.points) for polygon in polygons]
            rles = coco_mask.frPyObjects(points, height, width)
            mask = coco_mask.decode(coco_mask.merge(rles)) > 0
            yield item.id, names[polygons[0].label], mask


def datumaro_coco(folder: Path) -> Iterator[Object]:
    """COCO instances."""
    yield from datumaro_objects(folder, "coco_instances")


def datumaro_panoptic(folder: Path) -> Iterator[Object]:
    """COCO panoptic."""
    yield from datumaro_objects(folder, "coco_panoptic")


def datumaro_cvat(folder: Path) -> Iterator[Object]:
    """The archive that CVAT imports with a datumaro of its own, which needs no pictures."""
    with TemporaryDirectory() as inside:
        zipfile.ZipFile(folder / "annotations.zip").extractall(inside)
        (Path(inside) / "images").mkdir()
        yield from datumaro_objects(Path(inside), "coco_instances")


def supervision_yolo(folder: Path) -> Iterator[Object]:
    """YOLO's polygons, as supervision fills them."""
    import supervision

    dataset = supervision.DetectionDataset.from_yolo(
        images_directory_path=str(folder / "images/train"),
        annotations_directory_path=str(folder / "labels/train"),
        data_yaml_path=str(folder / "data.yaml"),
        force_masks=True,
    )
    yield from _detected(dataset)


def supervision_coco(folder: Path) -> Iterator[Object]:
    """COCO instances, as supervision reads them."""
    import supervision

    dataset = supervision.DetectionDataset.from_coco(
        images_directory_path=str(folder / "images/train"),
        annotations_path=str(folder / "annotations/instances_train.json"),
        force_masks=True,
    )
    yield from _detected(dataset)


def _detected(dataset: Any) -> Iterator[Object]:
    """The objects of supervision's data set."""
    for path, detections in dataset.annotations.items():
        masks = [] if detections.mask is None else detections.mask
        for label, mask in zip(detections.class_id, masks, strict=True):
            yield Path(path).stem, dataset.classes[label], np.asarray(mask, dtype=bool)


def label_studio(folder: Path) -> Iterator[Object]:
    """Brushes, by the decoder of the SDK's converter; the predictions pass its own checks."""
    from label_studio_sdk.converter.brush import decode_rle
    from label_studio_sdk.label_interface import LabelInterface

    interface = LabelInterface((folder / "labels.xml").read_text(encoding="utf-8"))
    interface.validate()
    for task in json.loads((folder / "tasks.json").read_text()):
        (prediction,) = task["predictions"]
        errors = interface.validate_prediction(prediction, return_errors=True)
        if errors:
            raise ValueError(f"the SDK refuses a prediction: {errors}")
        for result in prediction["result"]:
            shape = result["original_height"], result["original_width"], 4
            pixels = decode_rle(result["value"]["rle"]).reshape(shape)
            (label,) = result["value"]["brushlabels"]
            yield Path(task["data"]["image"]).stem, label, pixels[..., 3] > 0


def huggingface(folder: Path) -> Iterator[Object]:
    """Masks of the image folder, one object for each value; pictures come with them."""
    from datasets import load_dataset

    names = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    with TemporaryDirectory() as cache:
        rows = load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
        paths = [json.loads(line) for line in (folder / "train/metadata.jsonl").open()]
        for row, about in zip(rows, paths, strict=True):
            mask = np.asarray(row["mask"])
            if mask.shape != np.asarray(row["image"]).shape[:2]:
                raise ValueError(f"{about['file_name']}: the mask has another size")
            if row["objects"] != about["objects"]:
                raise ValueError(f"{about['file_name']}: {row['objects']}")
            for label in np.unique(mask[mask > 0]):
                yield Path(about["file_name"]).stem, names[str(label)], mask == label


READERS = {
    reader.__name__: reader
    for reader in (
        datumaro_coco,
        datumaro_panoptic,
        datumaro_cvat,
        supervision_coco,
        supervision_yolo,
        label_studio,
        huggingface,
    )
}


if __name__ == "__main__":
    reader, folder, out = sys.argv[1:]
    objects = READERS[reader](Path(folder))
    arrays = {
        f"{picture}|{number}|{name}": mask for number, (picture, name, mask) in enumerate(objects)
    }
    np.savez_compressed(out, **arrays)
