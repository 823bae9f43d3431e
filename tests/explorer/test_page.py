"""The page in a real browser: what a person does, and the numbers behind what is shown."""

from base64 import b64decode
from urllib.parse import urlsplit

import numpy as np
import pytest

import pixalign as pa
from asking_explorer import png
from pixalign.explorer import aligning, scenes
from pixalign.explorer.scenes import drawn_scene, prepared_scene

SIDE = 256
QUICK = {"elbo_steps": 2, "elbo_range": (0.2, 0.8), "collect_steps": 2}


# Texts whose contrast with the nearest painted ground is below 4.5: computed, not looked up.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const painted = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const luminance = (rgb) => rgb.slice(0, 3)
    .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = painted(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(".visually-hidden, .skip, :disabled, .off")) continue;
    const [one, other] = [painted(getComputedStyle(element).color), ground(element)].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) low.push([element.textContent.trim().slice(0, 30), contrast.toFixed(2)]);
  }
  return low;
}"""  # noqa: E501


@pytest.fixture(scope="module")
def url(embedded, running):
    """A server on which everything is quick: few timesteps, small scenes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(aligning.DETAILS, "quick", lambda: pa.AlignConfig(**QUICK))
        patch.setattr(scenes, "_SIDE", SIDE)
        with running(embedded, demo=True) as address:
            yield address


class Tab:
    """A tab of a browser that remembers what went wrong, and where it asked."""

    def __init__(self, browser, url, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.problems, self.hosts = [], set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def _said(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def state(self, expression):
        """What the script of the page holds."""
        return self.page.evaluate(
            "async () => { const { state } = await import('/static/align.js');"
            f" return {expression}; }}"
        )

    def array(self, expression, dtype=np.float32):
        """A typed array of the page."""
        bytes_of = "((a) => new Uint8Array(a.buffer, a.byteOffset, a.byteLength).toBase64())"
        return np.frombuffer(b64decode(self.state(f"{bytes_of}({expression})")), dtype)

    def aligned(self, words):
        """Wait until so many words are listed and nothing runs."""
        self.page.wait_for_function(
            "(count) => document.querySelectorAll('#list button').length === count"
            " && !document.querySelector('#align-job progress')",
            arg=words,
        )

    def close(self):
        self.context.close()
        assert not self.problems, self.problems
        assert self.hosts <= {"127.0.0.1", None}


@pytest.fixture
def tab(browser, url):
    opened = Tab(browser, url, viewport={"width": 1440, "height": 900})
    opened.aligned(5)
    yield opened
    opened.close()


def test_the_demo_shows_the_library_s_numbers(tab, embedded):
    """Heatmaps, masks, probabilities and verdicts, before and after sliders are moved."""
    page = tab.page
    scene = prepared_scene(embedded.backbone)
    classes, config = list(scene.names), pa.AlignConfig(**QUICK)
    expected = embedded.align(scene.image, classes, config=config)
    shown = tab.array("state.result.data")
    assert np.array_equal(shown.reshape(expected.heatmaps.shape), expected.heatmaps)
    verdicts = page.locator("#list .verdict").all_inner_texts()
    assert [text.split()[1].lower() for text in verdicts] == [x.verdict for x in expected.trust]
    threshold = expected.config.threshold
    for moved in (threshold, 0.25):
        if moved != threshold:
            page.locator("#threshold").fill(str(moved))
        mask = tab.array("state.result.mask(state.threshold)", np.uint8)
        assert np.array_equal(mask.reshape(SIDE, SIDE), expected.mask(moved))
        x, y = 65, 165
        probabilities = tab.state(
            f"state.result.probabilities({y * SIDE + x}, state.threshold, state.header.temperature)"
        )
        np.testing.assert_allclose(probabilities, expected.probs(moved)[:, y, x], atol=1e-6)

    # A pixel of the owl is hovered: it is ranked first, with its probability.
    box = page.locator("#canvas").bounding_box()
    scale = box["width"] / SIDE
    page.mouse.move(box["x"] + scale * (x + 0.5), box["y"] + scale * (y + 0.5))
    first = page.locator("#pixel li").first.inner_text().split("\n")
    share = expected.probs(0.25)[:, y, x]
    assert first[0] == [*("background", *classes)][int(share.argmax())] == "owl"
    assert first[1] == f"{100 * share.max():.0f} %"

    # The strength of "elbo" is moved: no job, other numbers, the library's.
    page.get_by_role("radio", name="Elbo").check()
    page.wait_for_function("() => document.querySelector('#shown').textContent.includes('elbo')")
    page.locator("#strength").fill("0.3")
    config = pa.AlignConfig(**QUICK, gamma=0.3)
    expected = embedded.align(scene.image, classes, method="elbo", config=config)
    page.wait_for_function(
        "async (value) => { const { state } = await import('/static/align.js');"
        " return state.header.method === 'elbo' && state.header.strength === value; }",
        arg=0.3,
    )
    shown = tab.array("state.result.data")
    np.testing.assert_allclose(shown.reshape(expected.heatmaps.shape), expected.heatmaps, atol=1e-3)


def test_upload_chips_hover_and_the_keyboard(tab, embedded):
    page = tab.page
    picture = drawn_scene(embedded.backbone, 7, 3)  # bus, umbrella, banana
    page.locator("#file").set_input_files(
        {"name": "mine.png", "mimeType": "image/png", "buffer": png(picture.image)}
    )
    page.wait_for_function(
        "() => document.querySelector('#picture-note').textContent.includes('mine')"
    )
    for _ in page.locator("#classes .chip button").all():
        page.locator("#classes .chip button").first.click()
    words = page.get_by_label("What may be in it")
    words.fill("bus, umbrella,")
    words.press_sequentially("BUS")
    words.press("Enter")
    assert page.locator("#classes .chip").all_inner_texts() == ["bus\n×", "umbrella\n×"]
    assert "is there already" in page.locator("#classes").inner_text()
    words.fill("banana")
    words.press("Enter")
    words.press("Enter")  # an empty line aligns
    tab.aligned(3)
    assert tab.state("state.classes") == ["bus", "umbrella", "banana"]
    page.locator("#list button").nth(1).hover()
    assert page.locator("#shown").inner_text() == "Showing umbrella by dense"
    assert page.locator("#scale").is_visible()
    page.mouse.move(0, 0)
    assert page.locator("#shown").inner_text() == "Showing all words by dense"
    page.locator("#list button").nth(2).press("Enter")  # pins
    page.locator("#canvas").focus()
    assert page.locator("#shown").inner_text() == "Showing banana by dense"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowDown")
    page.wait_for_function("() => document.querySelector('#pixel-said').textContent.includes('%')")
    assert page.locator("#pixel li").count() == 4
    page.get_by_role("radio", name="Compare").check()
    page.wait_for_function(
        "async () => { const { state } = await import('/static/align.js');"
        " return document.querySelectorAll('#compare canvas').length === 5"
        " && document.querySelector('#compare').checkVisibility(); }"
    )
    slider = page.get_by_label("How much of the left picture is shown")
    slider.press("ArrowRight")
    assert float(slider.input_value()) == 50.5
    with page.expect_download() as download:
        page.get_by_role("button", name="Mask (PNG)").click()
    assert download.value.suggested_filename == "mask.png"


def test_reload_goes_on_and_a_second_tab_is_its_own(tab, browser, url):
    page = tab.page
    page.get_by_role("button", name="Remove banana").click()
    page.locator("#align").click()
    tab.aligned(4)
    before = tab.array("state.result.data")
    other = Tab(browser, url)
    other.aligned(5)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    tab.aligned(4)
    assert np.array_equal(tab.array("state.result.data"), before)
    assert page.locator("#classes .chip").count() == 4
    assert len(other.state("state.classes")) == 5
    other.close()


def test_bad_files_and_a_stopped_server_are_told(tab):
    page = tab.page
    page.locator("#file").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"}
    )
    alert = page.locator("#align-job [role=alert]")
    alert.wait_for()
    assert "no image of a known format" in alert.inner_text()
    page.context.route("**/api/**", lambda route: route.abort())
    page.locator("#scene").click()
    page.wait_for_function(
        "() => document.querySelector('#align-job').textContent.includes('does not answer')"
    )
    expected = ("400 (Bad Request)", "net::ERR_FAILED")
    tab.problems = [text for text in tab.problems if not any(x in text for x in expected)]


def test_a_phone_shows_everything_in_one_column(browser, url):
    phone = Tab(browser, url, viewport={"width": 390, "height": 844}, has_touch=True)
    phone.aligned(5)
    page = phone.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#canvas").tap(position={"x": 120, "y": 220})
    assert page.locator("#pixel li").count() > 1
    page.locator("#list button").nth(1).tap()
    assert page.locator("#shown").inner_text() == "Showing pear by dense"
    for name in ("Generate", "Edit"):
        page.get_by_role("tab", name=name).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    phone.close()


def test_generate_shows_weights_and_scrubs_and_can_be_cancelled(tab, embedded):
    page = tab.page
    page.get_by_role("tab", name="Align").focus()
    page.keyboard.press("ArrowRight")
    prompt = page.get_by_label("What to draw")
    prompt.fill("a photo of owl, red car")
    page.wait_for_function("() => document.querySelectorAll('#entities .chip').length === 2")
    assert page.locator("#entities .chip").all_inner_texts() == ["owl\n×", "red car\n×"]
    steps, draw = page.locator("#g-steps"), page.get_by_role("button", name="Draw", exact=True)
    steps.fill("100")
    draw.click()
    page.wait_for_function("() => document.querySelector('#generate-job progress')?.value > 0")
    page.locator("#generate-job").get_by_role("button", name="Cancel").click()
    page.wait_for_function(
        "() => document.querySelector('#generate-job').textContent.startsWith('Cancelled')"
    )
    assert page.locator("#generate-result").is_hidden()
    steps.fill("3")
    draw.click()
    page.locator("#generate-result").wait_for()
    made = embedded.generate("a photo of owl, red car", entities=["owl", "red car"], steps=3)
    shown = page.evaluate(
        "async () => { const { state } = await import('/static/generate.js');"
        " return Array.from(state.result.arrays.weights.data); }"
    )
    np.testing.assert_allclose(shown, made.weights.ravel())
    assert page.locator("#plot polyline").count() == 2
    assert "owl: mean" in page.locator("#plot svg").get_attribute("aria-label")
    assert page.locator("#maps canvas").count() == 4
    assert page.locator("#step-said").inner_text() == "step 3 of 3"
    page.locator("#step").press("ArrowLeft")
    assert page.locator("#step-said").inner_text() == "step 2 of 3"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.locator("#generate-result").wait_for()  # the tab, and what was drawn, are there again
    assert prompt.input_value() == "a photo of owl, red car"


def test_edit_changes_a_word(tab):
    page = tab.page
    page.get_by_role("tab", name="Edit").click()
    page.get_by_role("button", name="Edit", exact=True).click()
    assert (
        "say what the picture shows" in page.locator("#edit-job [role=alert]").inner_text().lower()
    )
    page.get_by_label("What it shows").fill("a photo of penguin, pear, dolphin, owl")
    page.get_by_label("What it shall show").fill("a photo of penguin, pear, dolphin, cat")
    page.get_by_label("only where attention is on them").check()
    page.get_by_label("Where new words attend").select_option("ptp")
    page.get_by_label("How the picture’s noise is found").select_option("ddim")
    page.locator("#e-steps").fill("2")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.locator("#edit-result").wait_for()
    assert "“owl” became “cat”" in page.locator("#edit-said").inner_text()
    assert page.locator("#edit-pictures img").count() == 2
    page.get_by_label("How much of the picture before the edit").press("ArrowLeft")


def test_texts_are_easy_to_read_in_both_themes(tab):
    """Contrast of at least 4.5 to 1 of every text with what lies behind it."""
    page = tab.page
    for name in ("light", "dark"):
        page.evaluate("(name) => { document.documentElement.dataset.theme = name; }", name)
        low = page.evaluate(CONTRASTS)
        assert low == [], (name, low)
    names = [page.locator("#theme").get_attribute("aria-label")]
    for _ in range(3):
        page.locator("#theme").click()
        names.append(page.locator("#theme").get_attribute("aria-label"))
    assert len(set(names)) == 3
