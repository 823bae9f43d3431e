"""The explorer over HTTP: what it shows is what the library says."""

import dataclasses
import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pixalign as pa
import tiny
from asking_explorer import Asking, asking, png, unpacked
from helpers import batches, small
from pixalign.explorer import aligning
from pixalign.explorer.app import create_app

CLASSES = ["dog", "hot dog", "zebra"]
QUICK = {"elbo_steps": 3, "elbo_range": (0.2, 0.8), "collect_steps": 2}


@pytest.fixture(scope="module")
def model():
    return pa.load(small("sd1"))


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """ "quick" is quicker still."""
    before = dict(aligning.DETAILS)
    aligning.DETAILS["quick"] = lambda: pa.AlignConfig(**QUICK)
    yield
    aligning.DETAILS.update(before)


@pytest.fixture(scope="module")
def photo():
    return tiny.photo(60, 40)


@pytest.fixture(scope="module")
def app(model):
    return create_app(model)


@pytest.fixture
def person(app, photo):
    """Someone who has a picture."""
    new = Asking(app)
    answer = new.ask("PUT", "/api/picture", content=png(photo))
    assert answer.json() == {
        "width": 60, "height": 40, "original": [60, 40], "names": [], "scene": None,
    }  # fmt: skip
    return new


# ---- align ----


def test_heatmaps_are_those_of_the_library(model, person, photo):
    job = person.done("/api/align", classes=CLASSES, seed=5)
    assert job["state"] == "done"
    assert job["total"] == job["done"] > 0
    number = job["result"]["measurement"]
    config = pa.AlignConfig(**QUICK)
    expected = model.align(photo, CLASSES, config=config, seed=5)
    header, arrays = person.conclude(measurement=number)
    assert np.array_equal(arrays["heatmaps"], expected.heatmaps)
    assert header["threshold"] == expected.config.threshold
    assert [row["verdict"] for row in header["classes"]] == [x.verdict for x in expected.trust]
    numbers = [row["numbers"] for row in header["classes"]]
    assert numbers == [dict(verdict.numbers) for verdict in expected.trust]
    strengths = {"elbo": ("gamma", 0.5), "dense": ("evidence_strength", 4.0), "attention": None}
    for method, field in strengths.items():
        own = config if field is None else dataclasses.replace(config, **dict([field]))
        expected = model.align(photo, CLASSES, method=method, config=own, seed=5)
        strength = None if field is None else field[1]
        _, arrays = person.conclude(measurement=number, method=method, strength=strength)
        np.testing.assert_allclose(arrays["heatmaps"], expected.heatmaps, atol=2e-4)
    paper = pa.AlignConfig.paper(prompt_order="sorted", **QUICK)
    expected = model.align(photo, CLASSES, config=paper, seed=5)
    _, arrays = person.conclude(measurement=number, method="paper")
    np.testing.assert_allclose(arrays["heatmaps"], expected.heatmaps, atol=2e-4)


def test_strength_and_methods_take_no_pass_and_further_words_few(model, person):
    number = person.done("/api/align", classes=CLASSES)["result"]["measurement"]

    def look():
        for method in ("dense", "elbo", "attention", "paper"):
            for strength in (0.2, 0.9):
                person.conclude(measurement=number, method=method, strength=strength)
        return person.done("/api/align", classes=CLASSES)["result"]["measurement"]

    again, passes = batches(model.pipe, look)
    assert (again, passes) == (number, [])
    more = [*CLASSES, "cat"]
    later, passes = batches(model.pipe, lambda: person.done("/api/align", classes=more))
    assert sum(passes) == QUICK["elbo_steps"] + QUICK["collect_steps"]
    old = person.post("/api/conclude", measurement=number)
    assert (old.status_code, "no longer there" in old.json()["error"]) == (404, True)
    number = later["result"]["measurement"]
    _, passes = batches(model.pipe, lambda: person.done("/api/align", classes=more[1:]))
    assert sum(passes) == QUICK["collect_steps"]
    _, passes = batches(model.pipe, lambda: person.done("/api/align", classes=more[1:], seed=1))
    assert sum(passes) == 4 * QUICK["elbo_steps"] + QUICK["collect_steps"]


def test_other_methods_are_jobs(model, person, photo):
    refused = person.post("/api/conclude", measurement=1, method="likelihood")
    assert refused.status_code == 404
    number = person.done("/api/align", classes=CLASSES)["result"]["measurement"]
    refused = person.post("/api/conclude", measurement=number, method="likelihood")
    assert (refused.status_code, "align it by that" in refused.json()["error"]) == (400, True)
    job = person.done("/api/align", classes=CLASSES, method="likelihood")
    assert (job["state"], job["stage"]) == ("done", "likelihood")
    assert job["done"] == job["total"]
    config = pa.AlignConfig(**QUICK)
    expected = model.align(photo, CLASSES, method="likelihood", config=config)
    header, arrays = person.conclude(measurement=number, method="likelihood")
    np.testing.assert_allclose(arrays["heatmaps"], expected.heatmaps, atol=2e-4)
    assert header["strength"] is None
    assert person.post("/api/align", classes=CLASSES, method="ovam-optimized").status_code == 400


def test_downloads_are_what_save_writes(model, person, photo, tmp_path):
    number = person.done("/api/align", classes=CLASSES)["result"]["measurement"]
    expected = model.align(photo, CLASSES, config=pa.AlignConfig(**QUICK))
    expected.save(tmp_path, threshold=0.3)
    for kind in ("mask", "overlay"):
        answer = person.post("/api/download", measurement=number, kind=kind, threshold=0.3)
        with Image.open(io.BytesIO(answer.content)) as found, \
             Image.open(tmp_path / f"{kind}.png") as wanted:  # fmt: skip
            assert found.mode == wanted.mode
            assert np.array_equal(np.asarray(found), np.asarray(wanted))
    answer = person.post("/api/download", measurement=number, kind="result", threshold=0.3)
    assert answer.json() == expected.to_dict(0.3)
    answer = person.post("/api/download", measurement=number, kind="coco", threshold=0.3)
    assert answer.json() == expected.to_coco(0.3)


def test_large_pictures_are_shown_smaller_and_slivers_are_told(app):
    person = Asking(app)
    answer = person.ask("PUT", "/api/picture", content=png(Image.new("RGB", (3000, 1500))))
    assert (answer.json()["width"], answer.json()["height"]) == (1024, 512)
    with Image.open(io.BytesIO(person.get("/api/picture").content)) as shown:
        assert shown.size == (1024, 512)
    answer = person.ask("PUT", "/api/picture", content=png(Image.new("RGB", (4000, 10))))
    assert answer.status_code == 400
    assert "at least 8" in answer.json()["error"]
    assert person.get("/api/session").json()["picture"]["width"] == 1024  # the old one stays


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"no picture", "no image of a known format"),
        (png(Image.new("RGB", (64, 64)))[:60], "damaged"),
        (b"x" * (26 * 2**20), "too large"),
        (png(Image.new("1", (9000, 9000))), "40 million pixels"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image of a known format"),
        (b"%!PS-Adobe", "no image of a known format"),
        (b"/etc/passwd", "no image of a known format"),
    ],
)
def test_bad_uploads_get_a_sentence(app, data, said):
    person = Asking(app)
    answer = person.ask("PUT", "/api/picture", content=data)
    assert answer.status_code in (400, 413)
    assert said in answer.json()["error"]


def test_scenes_of_the_lab(app):
    person = Asking(app)
    answer = person.post("/api/scene", number=0, objects=3).json()
    assert answer["names"] == ["taco", "chair", "high heel"]
    assert (answer["width"], answer["scene"]) == (512, 0)


def test_the_demo_begins_with_a_scene(model):
    state = asking(model, demo=True).get("/api/session").json()
    assert len(state["picture"]["names"]) == 5


# ---- generate and edit ----


def test_generate_draws_plainly_and_calibrated(model, person):
    prompt, entities = "a photo of dog and red car", ["dog", "red car"]
    job = person.done("/api/generate", prompt=prompt, entities=entities, steps=3, seed=4)
    assert job["state"] == "done", job["error"]
    header, arrays = unpacked(person.get("/api/results/generate").content)
    assert header["words"] == entities
    expected = model.generate(prompt, entities=entities, steps=3, seed=4)
    plain = model.generate(prompt, method="plain", steps=3, seed=4)
    for name, made in (("plain", plain), ("calibrated", expected)):
        with Image.open(io.BytesIO(arrays[name].tobytes())) as shown:
            assert np.array_equal(np.asarray(shown), np.asarray(made.image))
    assert np.array_equal(arrays["weights"], expected.weights)
    assert np.array_equal(arrays["errors"], expected.errors)
    with model.capture(entities, prompt) as maps:
        model.generate(prompt, entities=entities, steps=3, seed=4)
    assert np.array_equal(arrays["calibrated_maps"], maps.steps[:, 0])
    assert arrays["plain_maps"].shape == arrays["calibrated_maps"].shape


def test_entities_are_found_or_named(person):
    answer = person.post("/api/entities", prompt="a dog and a red car")
    assert answer.json() == {"entities": ["dog", "red car"]}
    answer = person.post("/api/generate", prompt="a dog", entities=["cat"], steps=1)
    assert (answer.status_code, "'cat'" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("given", [True, False])
def test_edit_is_the_library_s(model, person, photo, given):
    asked = {"source": "a photo of dog", "target": "a photo of cat", "steps": 2, "seed": 3}
    how = {"method": "elbo", "blend": "heatmap", "inversion": "ddim", "entities": ["dog"]}
    job = person.done("/api/edit", **asked, **how, given=given)
    assert job["state"] == "done", job["error"]
    header, arrays = unpacked(person.get("/api/results/edit").content)
    expected = model.edit(photo if given else None, **asked, **how)
    assert header["changes"] == [["dog", "cat"]]
    with Image.open(io.BytesIO(arrays["edited"].tobytes())) as shown:
        assert np.array_equal(np.asarray(shown), np.asarray(expected.edited))
    assert np.array_equal(arrays["heatmaps"], expected.heatmaps)
    assert bool(header["figures"]) == given


# ---- several people, full queues, cancelling ----


def test_sessions_do_not_mix(app, photo):
    one, other = Asking(app), Asking(app)
    one.ask("PUT", "/api/picture", content=png(photo))
    assert other.get("/api/picture").status_code == 404
    job = one.post("/api/align", classes=["dog"]).json()
    assert other.get(f"/api/jobs/{job['job']}").status_code == 404
    assert other.ask("DELETE", f"/api/jobs/{job['job']}").status_code == 404
    for path in ("/api/session", "/api/picture", "/api/results/generate"):
        assert one.client.get(path).status_code == 404  # without a session
    assert (
        one.ask("GET", "/api/session", headers={"X-Pixalign-Session": "guess"}).status_code == 404
    )


def test_a_full_queue_says_so_and_cancelling_makes_room(model, photo):
    person = asking(model)
    person.ask("PUT", "/api/picture", content=png(photo))
    release = threading.Event()
    queue = person.client.app.app.state.explorer.queue
    blocker = queue.submit("someone", lambda: release.wait(20))
    try:
        jobs = [person.post("/api/align", classes=["dog"]).json() for _ in range(3)]
        assert [job["ahead"] for job in jobs] == [1, 2, 3]
        refused = person.post("/api/align", classes=["dog"])
        assert (refused.status_code, "waiting" in refused.json()["error"]) == (503, True)
        ended = person.ask("DELETE", f"/api/jobs/{jobs[0]['job']}").json()
        assert ended["state"] == "cancelled"
        assert person.post("/api/align", classes=["dog"]).status_code == 200
    finally:
        release.set()
    assert blocker.wait(5)


def test_cancelled_work_stops_between_passes_and_leaves_the_model_as_it_was(model, person):
    seen = []

    def work():
        job = person.post("/api/generate", prompt="a photo of dog", entities=["dog"], steps=100)
        name = job.json()["job"]
        while not person.get(f"/api/jobs/{name}").json()["done"]:
            pass
        person.ask("DELETE", f"/api/jobs/{name}")
        while (state := person.get(f"/api/jobs/{name}").json()["state"]) == "running":
            pass
        seen.append(state)

    _, passes = batches(model.pipe, work)
    assert seen == ["cancelled"]
    assert len(passes) < 100
    assert "encode_prompt" not in vars(model.pipe)
    assert not model.backbone.denoiser._forward_hooks


def test_old_sessions_make_room(model):
    person = asking(model)
    for _ in range(16):
        person.client.post("/api/session")
    assert person.get("/api/session").status_code == 404
    assert len(person.client.app.app.state.explorer.sessions) == 16


# ---- the page's files ----


def test_the_page_and_its_files_need_nothing_else(app):
    client = Asking(app).client
    page = client.get("/").text
    explorer = app.app.state.explorer
    assert {"index.html", "main.js", "base.css"} <= explorer.files.keys()
    for name, (data, kind) in explorer.files.items():
        answer = client.get(f"/static/{name}")
        assert answer.headers["content-type"].startswith(kind)
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "@import" not in text
    assert "<script>" not in page
    for path in ("/static/nothing.js", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/docs"):
        assert client.get(path).status_code == 404


def test_the_space_for_a_hub_is_python():
    """Gradio is not among what the tests install, so the app is read, not run."""
    source = (Path(__file__).parents[2] / "examples" / "space" / "app.py").read_text("utf-8")
    compile(source, "app.py", "exec")
