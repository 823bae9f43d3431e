"""An iterator of pictures gives an iterator of results, and holds few of them."""

import gc
import threading
import weakref

import pytest

import pixalign as pa
import tiny
from helpers import assert_close, model_of, pictures
from pixalign.methods import base, pending

STEPS = {"elbo_steps": 2, "collect_steps": 2}


@pytest.mark.parametrize("method", ["dense", "elbo", "daam"])
def test_results_equal_those_of_a_list(wide, method):
    model = model_of(wide("sd1"), config=pa.AlignConfig(**STEPS))
    images = pictures((40, 30), (30, 50), (64, 64))
    classes = [["dog"], ["cat", "dog"], ["car", "hot dog", "tree"]]
    expected = model.align(images, classes, seed=[3, 4, 5], method=method)
    found = model.align(iter(images), iter(classes), seed=iter([3, 4, 5]), method=method)
    found = list(found)
    assert len(found) == 3
    for one, other, seed in zip(found, expected, (3, 4, 5), strict=True):
        assert_close(one, other)
        assert one.provenance["seed"] == seed


def test_one_list_of_classes_for_all_and_shapes_in_any_order(wide):
    config = pa.AlignConfig(resize="keep", **STEPS)
    model = model_of(wide("sd3"), config=config)
    images = pictures((120, 30), (30, 120), (160, 40), (160, 40))
    together = list(model.align(iter(images), ["dog", "cat"], seed=2))
    for one, image in zip(together, images, strict=True):
        assert_close(one, model.align(image, ["dog", "cat"], seed=2))


@pytest.mark.parametrize(("room", "waiting"), [(pending._VALUES, pending._MOST), (1, 2)])
def test_few_pictures_and_heatmaps_live_at_a_time(wide, monkeypatch, room, waiting):
    """Forty pictures: never more than are read ahead, share a batch, and wait; of large ones two.

    A result waits while the next picture is in the network.
    """
    pipe, count, batch = wide("sd1"), 40, 4
    monkeypatch.setattr(pending, "_VALUES", room)
    monkeypatch.setattr("pixalign.methods.elbo.images_at_once", lambda *_: batch)
    model = model_of(pipe, config=pa.AlignConfig(**STEPS))
    encoded, concluded, made = weakref.WeakSet(), weakref.WeakSet(), 0

    def counting(function, alive):
        def counted(*arguments):
            value = function(*arguments)
            alive.add(value)
            return value

        return counted

    for module, name, alive in (
        (base, "encode_image", encoded),
        (pending, "conclude", concluded),
    ):
        monkeypatch.setattr(module, name, counting(getattr(module, name), alive))

    def given():
        nonlocal made
        for index in range(count):
            made += 1
            yield tiny.photo(40, 30, seed=index)

    most = [0, 0]
    for done, result in enumerate(model.align(given(), ["dog", "cat"]), 1):
        gc.collect()
        assert result in concluded
        most = [max(most[0], len(encoded)), max(most[1], len(concluded))]
        assert made - done <= batch + 8 + waiting
    assert done == count
    assert batch <= most[0] <= batch + waiting + 2
    assert most[1] <= waiting + 2  # this one, and the one before, which the loop still holds


@pytest.mark.parametrize("given", [list, iter])
def test_the_network_does_not_wait_for_results_to_be_concluded(wide, monkeypatch, given):
    """The first picture's result is made when the third is in the network already."""
    monkeypatch.setattr("pixalign.methods.elbo.images_at_once", lambda *_: 1)
    measured, concluded, third, seen = base.text_errors, pending.conclude, threading.Event(), []
    asked = []

    def text_errors(*arguments, **options):
        asked.append(1)
        if len(asked) == 3:
            third.set()
        return measured(*arguments, **options)

    def conclude(*arguments):
        seen.append(third.wait(30))
        return concluded(*arguments)

    monkeypatch.setattr(base, "text_errors", text_errors)
    monkeypatch.setattr(pending, "conclude", conclude)
    model = model_of(wide("sd1"), config=pa.AlignConfig(**STEPS))
    images = pictures((40, 30), (30, 50), (64, 64), (50, 50))
    assert len(list(model.align(given(images), ["dog", "cat"]))) == 4
    assert seen == [True] * 4


def test_others_may_ask_between_results(wide):
    model = model_of(wide("sd1"), config=pa.AlignConfig(**STEPS))
    results = model.align(iter(pictures((40, 30), (30, 50))), ["dog"])
    next(results)
    asked = []
    thread = threading.Thread(target=lambda: asked.append(model.encode(tiny.photo(40, 30))))
    thread.start()
    thread.join(60)
    assert asked
    assert len(list(results)) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classes": iter([["dog"]])}, "1 class lists for more images"),
        ({"classes": ["dog"], "seed": iter([1])}, "1 seeds for more images"),
        ({"classes": ["dog"], "seed": -1}, "seed is -1"),
        ({"classes": []}, "no classes"),
    ],
)
def test_what_does_not_fit_is_an_error(wide, given, message):
    model = model_of(wide("sd1"), config=pa.AlignConfig(**STEPS))
    classes = given.pop("classes")
    with pytest.raises(ValueError, match=message):
        list(model.align(iter(pictures((40, 30), (30, 50))), classes, **given))


def test_a_list_takes_one_seed_or_one_each(aligner):
    images = pictures((40, 30), (30, 50))
    assert [r.provenance["seed"] for r in aligner.align(images, ["dog"], seed=7)] == [7, 7]
    with pytest.raises(ValueError, match="1 seeds for 2 images"):
        aligner.align(images, ["dog"], seed=[1])
