"""Whatever ends a call, the pipeline is as it was; and calls leave nothing behind."""

import gc
from random import Random

import pytest

import pixalign as pa
import tiny
from helpers import equal, everything

pytestmark = pytest.mark.fuzz
FEW = pa.AlignConfig(elbo_steps=1, collect_steps=2)
PHOTO = tiny.photo(32, 32)


class Ended(Exception):
    """Raised where nobody expects it."""


def assert_unchanged(before, pipe):
    after = everything(pipe)
    assert before.keys() <= after.keys()
    for name, value in before.items():
        assert equal(value, after[name]), name


def captured(model):
    with model.capture(["dog"]):
        model.pipe("a dog on a sofa", num_inference_steps=2, height=32, width=32, output_type="np")


CALLS = {
    "align": lambda model: model.align(PHOTO, ["dog", "cat"], config=FEW),
    "daam": lambda model: model.align(PHOTO, ["dog", "cat"], method="daam", config=FEW),
    "present": lambda model: model.present(PHOTO, ["dog", "cat"], config=FEW),
    "generate": lambda model: model.generate(
        "a dog and a cat", entities=["dog", "cat"], steps=2, size=(32, 32)
    ),
    "attend-excite": lambda model: model.generate(
        "a dog and a cat", entities=["dog", "cat"], steps=2, size=(32, 32), method="attend-excite"
    ),
    "edit": lambda model: model.edit(
        PHOTO, "a dog and a car", "a cat and a car", steps=2, size=(32, 32), entities=["car", "dog"]
    ),
    "capture": captured,
}


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_anywhere_leaves_the_pipeline_as_it_was(name):
    pipe = tiny.sd1()
    model, rng = pa.load(pipe), Random(name)
    modules = [
        module
        for part in (pipe.unet, pipe.text_encoder, pipe.vae)
        for module in part.modules()
        if not list(module.children())
    ]
    if name == "capture":  # the pipeline's own call leaves attributes, with us or without
        CALLS[name](model)
    before = everything(pipe)
    if name == "capture":
        del before["scheduler state"]
    ended = 0
    for _ in range(3):
        left = rng.randrange(1, 60)

        def raising(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                raise Ended

        handles = [module.register_forward_hook(raising) for module in modules]
        try:
            CALLS[name](model)
        except Ended:
            ended += 1
        finally:
            for handle in handles:
                handle.remove()
        assert_unchanged(before, pipe)
    assert ended


def test_captures_within_captures_are_refused():
    model = pa.load(tiny.sd1())
    before = everything(model.pipe)
    inner = model.capture(["cat"])
    with model.capture(["dog"]), pytest.raises(ValueError, match="in one block"), inner:
        pass
    assert_unchanged(before, model.pipe)


@pytest.mark.parametrize("name", ["align", "capture"])
def test_calls_leave_nothing_behind(name):
    model = pa.load(tiny.sd1())

    def objects(calls):
        for _ in range(calls):
            CALLS[name](model)
        gc.collect()
        return len(gc.get_objects())

    objects(2)
    first = objects(1)
    assert objects(5) - first < 30
