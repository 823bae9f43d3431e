"""Grounding DINO and SAM: the real classes at a tiny size, against transformers' own processors."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import GroundingDinoProcessor, Sam2Model, SamModel, SamProcessor

import tiny
import tiny_grounding
from pixalign.backbones.grounding import GroundedSam, grounding_text

PHRASES = ["a red dog", "palm tree", "taco"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("grounding")
    made = ("detector", "sam", "sam2")
    return {name: getattr(tiny_grounding, name)(home / name) for name in made}


@pytest.fixture(params=["sam", "sam2"])
def networks(folders, request):
    return GroundedSam(folders["detector"], folders[request.param], torch.device("cpu"), 0.0)


def test_phrases_stand_in_the_text():
    text, spans = grounding_text(["A Red  dog.", "palm tree?"])
    assert text == "a red dog. palm tree."
    assert [text[slice(*span)] for span in spans] == ["a red dog", "palm tree"]
    with pytest.raises(ValueError, match=r"phrase is '\.'"):
        grounding_text(["dog", "."])


def test_boxes_are_those_of_the_processor(networks):
    """Box for box and score for score, where its words are looked at phrase by phrase."""
    image = tiny.photo(120, 80)
    boxes, scores, of = networks.boxes(image, PHRASES)
    processor = GroundingDinoProcessor(networks._see, networks._read)
    inputs = processor(images=image, text=" ".join(f"{p}." for p in PHRASES), return_tensors="pt")
    with torch.no_grad():
        outputs = networks._detector(**inputs)
    (found,) = processor.post_process_grounded_object_detection(
        outputs, threshold=-1.0, target_sizes=[(80, 120)]
    )
    words = inputs["input_ids"][0]
    named = torch.tensor([int(i) not in tiny_grounding.NUMBERS.values() for i in words])
    own = outputs.logits[0, :, : len(words)].sigmoid()[:, named].amax(1)
    order = own.argsort(descending=True, stable=True)
    torch.testing.assert_close(scores, own[order])
    sides = torch.tensor([120.0, 80.0, 120.0, 80.0])
    torch.testing.assert_close(boxes, found["boxes"][order].clamp(min=0).minimum(sides))
    assert set(of.tolist()) <= {0, 1, 2}
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)


def test_a_phrase_has_the_tokens_of_its_words(networks):
    """The columns of each phrase, found by splitting the tokens at the full stops."""
    image = tiny.photo(120, 80)
    _, scores, of = networks.boxes(image, PHRASES)
    text, _ = grounding_text(PHRASES)
    ids = networks._read(text)["input_ids"]
    groups, here = [], []
    for column, number in enumerate(ids):
        if number == tiny_grounding.NUMBERS["."]:
            groups.append(here)
            here = []
        elif number not in (101, 102):
            here.append(column)
    seen = networks._see(image, return_tensors="pt")
    with torch.no_grad():
        out = networks._detector(**networks._read(text, return_tensors="pt"), **seen)
    likely = out.logits[0].sigmoid()
    fits = torch.stack([likely[:, own].amax(1) for own in groups], 1)
    order = fits.amax(1).argsort(descending=True, stable=True)
    assert of.tolist() == fits.argmax(1)[order].tolist()
    torch.testing.assert_close(scores, fits.amax(1)[order])


def test_masks_are_those_of_the_processor(folders):
    networks = GroundedSam(folders["detector"], folders["sam"], torch.device("cpu"))
    image, boxes = tiny.photo(100, 60), torch.tensor([[10.0, 5, 60, 50], [0, 0, 99, 59]])
    masks = networks.masks(image, boxes)
    processor = SamProcessor(tiny_grounding.SamImageProcessorPil.from_pretrained(folders["sam"]))
    inputs = processor(image, input_boxes=[boxes.tolist()], return_tensors="pt")
    sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
    with torch.no_grad():
        out = SamModel.from_pretrained(folders["sam"])(
            pixel_values=inputs["pixel_values"],
            input_boxes=inputs["input_boxes"].float(),
            multimask_output=False,
        )
    (theirs,) = processor.post_process_masks(out.pred_masks, *sizes)
    assert masks.shape == (2, 60, 100)
    assert (masks == theirs[:, 0]).float().mean() > 0.999


def test_masks_of_sam_2_by_hand(folders):
    """The picture stretched to the network's square, the box with it, the mask back again."""
    networks = GroundedSam(folders["detector"], folders["sam2"], torch.device("cpu"))
    image, side = tiny.photo(100, 60), tiny_grounding.SIDE
    square = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)) / 255
    pixels = (square - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    box = torch.tensor([[10.0, 5, 60, 50]])
    with torch.no_grad():
        out = Sam2Model.from_pretrained(folders["sam2"])(
            pixel_values=torch.from_numpy(pixels).permute(2, 0, 1)[None].float(),
            input_boxes=(box * torch.tensor([side / 100, side / 60] * 2))[None],
            multimask_output=False,
        )
    large = torch.nn.functional.interpolate(out.pred_masks[0], (60, 100), mode="bilinear")
    assert (networks.masks(image, box) == (large[:, 0] > 0)).float().mean() > 0.999


def test_masks_fit_the_picture(networks):
    image = tiny.photo(90, 50)
    assert networks.masks(image, torch.tensor([[1.0, 1, 30, 30]])).shape == (1, 50, 90)
    assert networks.masks(image, torch.zeros(0, 4)).shape == (0, 50, 90)


def test_the_same_again(networks):
    image = tiny.photo(90, 50)
    boxes = [networks.boxes(image, PHRASES)[0] for _ in range(2)]
    assert torch.equal(*boxes)
    record = networks.record()
    assert record["weights"] == networks.record()["weights"]
    assert np.isclose(record["box_threshold"], 0.0)


def test_bad_input_is_named(folders, tmp_path):
    cpu = torch.device("cpu")
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError, match=r"no Grounding DINO in .*missing"):
        GroundedSam(missing, folders["sam"], cpu)
    with pytest.raises(OSError, match=r"cannot load SAM from .* 'grounding-dino' model; allowed"):
        GroundedSam(folders["detector"], folders["detector"], cpu)
    with pytest.raises(OSError, match=r"cannot load Grounding DINO from .* 'sam' model"):
        GroundedSam(folders["sam"], folders["sam"], cpu)
    with pytest.raises(ValueError, match=r"box_threshold is 2; allowed: 0 to 1"):
        GroundedSam(folders["detector"], folders["sam"], cpu, 2)
    networks = GroundedSam(folders["detector"], folders["sam"], cpu)
    with pytest.raises(ValueError, match=r"300 phrases have .* tokens; allowed: 256"):
        networks.boxes(tiny.photo(60, 60), ["dog"] * 300)
