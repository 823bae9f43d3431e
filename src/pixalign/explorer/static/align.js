// The tab "align": picture, words, settings, and what the stage shows of them.

import { getBlob, Jobs, post, postBundle, putFile } from "./api.js";
import { Chips } from "./chips.js";
import { Comparison } from "./compare.js";
import { saved } from "./files.js";
import { heatImage, Heatmaps, maskImage, ramp } from "./maths.js";
import { fitted, layer, paint, Pointing, resize } from "./stage.js";
import { doubted, PixelList, WordList } from "./words.js";

const $ = (id) => document.getElementById(id);
const NAMES = { attention: "Attention", paper: "Paper", elbo: "Elbo", dense: "Dense" };

// What is shown now; tests read it too.
export const state = {
  about: null, picture: null, bitmap: null, measurement: 0, classes: [], result: null, header: null,
  threshold: 0.4, opacity: 0.6, method: "dense", strength: {}, view: "mask", word: null, pinned: null,
};
let chips, jobs, words, pixels, pointing, comparison, table, mask;

// ---- picture ----

export async function upload(file) {
  $("picture-note").textContent = "Reading the picture…";
  await taken(() => {
    if (file.size > state.about.most.bytes) throw new Error(`the file has ${(file.size / 2 ** 20).toFixed(0)} MiB; allowed: ${state.about.most.bytes / 2 ** 20}`);
    return putFile("/api/picture", file);
  }, file.name);
}

async function drawScene() {
  const number = Math.floor(Math.random() * 5000);
  const objects = 2 + Math.floor(Math.random() * 3);
  if (await taken(() => post("/api/scene", { number, objects }))) {
    chips.set(state.picture.names);
    run();
  }
}

async function taken(from, name = "") {
  await jobs.cancel();
  try {
    forget();
    await show(await from(), name);
    jobs.place.replaceChildren();
    return true;
  } catch (error) {
    jobs.fail(error.message);
    $("picture-note").textContent = "";
    return false;
  }
}

async function show(picture, name = "") {
  state.picture = picture;
  state.bitmap = await createImageBitmap(await getBlob("/api/picture"));
  const { width, height, original, scene } = picture;
  const smaller = original[0] !== width || original[1] !== height;
  const size = smaller ? `${original[0]} × ${original[1]}, shown at ${width} × ${height}` : `${width} × ${height} pixels`;
  $("picture-note").textContent = `${scene === null ? name || "The picture" : `Lab scene ${scene}`}: ${size}.`;
  $("welcome").hidden = true;
  $("stage").classList.remove("empty");
  pointing.picture = state.bitmap;
  layout();
  dispatchEvent(new CustomEvent("picture"));
}

function forget() {
  Object.assign(state, { result: null, header: null, measurement: 0, word: null, pinned: null });
  for (const option of $("other").options) option.selected = !option.value;
  comparison.forget();
  refresh();
}

// ---- passes and conclusions ----

async function run() {
  chips.take();
  if (!state.picture) return jobs.fail("choose a picture first, or draw a scene");
  if (!chips.words.length) return jobs.fail("type at least one word");
  const body = { classes: chips.words, method: state.method, detail: $("detail").value, seed: 0 };
  const done = await jobs.run("/api/align", body);
  if (!done) return;
  state.measurement = done.measurement;
  state.classes = done.classes;
  comparison.forget();
  await conclude(true);
}

let asked = 0;

// What the settings make of the measurement; a threshold of the method's own where it is `fresh`.
async function conclude(fresh) {
  if (!state.measurement) return;
  const mine = ++asked;
  try {
    const bundle = await concluded(state.method, state.strength[state.method] ?? null);
    if (mine !== asked) return;
    state.result = new Heatmaps(bundle.arrays.heatmaps);
    state.header = bundle.header;
    if (fresh) threshold(bundle.header.threshold);
    refresh();
  } catch (error) {
    if (mine === asked) jobs.fail(error.message);
  }
}

export const concluded = (method, strength = null) => postBundle("/api/conclude", { measurement: state.measurement, method, strength });

async function choose(method) {
  state.method = method;
  const about = state.about.methods.find((row) => row.name === method);
  $("method-about").textContent = about.about;
  slider(about);
  if (!state.measurement) return;
  if (about.shared) await conclude(true);
  else await run();
}

function slider(about) {
  const row = $("strength-row"), input = $("strength"), own = about.slider;
  row.classList.toggle("off", !own);
  input.disabled = !own;
  if (!own) {
    $("strength-label").textContent = "Strength: this method has none";
    row.querySelector("output").textContent = "";
    return;
  }
  Object.assign(input, { min: own.min, max: own.max, step: own.step });
  input.value = state.strength[about.name] ?? own.value;
  $("strength-label").textContent = own.label;
  row.querySelector("output").textContent = Number(input.value).toFixed(2);
}

// ---- what is shown ----

function threshold(value) {
  state.threshold = value;
  $("threshold").value = value;
  $("threshold").previousElementSibling.textContent = value.toFixed(2);
}

function refresh() {
  const { result, header } = state;
  mask = result && result.mask(state.threshold);
  words.show(header, result && result.shares(mask), state.about.colours);
  const gone = absent();
  $("without").hidden = !gone.length || gone.length === header.classes.length;
  $("without").textContent = `Align again without ${gone.length > 1 ? `the ${gone.length} absent words` : `“${gone[0]}”`}`;
  for (const button of $("downloads").querySelectorAll("button")) button.disabled = !result;
  draw();
}

const absent = () => (state.header?.classes || []).filter((row) => row.verdict === "absent").map((row) => row.name);

function draw() {
  const { result, bitmap, view } = state, comparing = view === "compare";
  $("canvas").hidden = !bitmap || comparing;
  $("compare").hidden = !bitmap || !comparing;
  if (!bitmap) return;
  if (comparing) {
    comparison.show();
    said("");
    $("scale").hidden = $("hatched").hidden = true;
    return;
  }
  const word = state.word ?? state.pinned ?? (view === "heat" && result ? 0 : null);
  const heat = result && word !== null && view !== "picture";
  $("scale").hidden = !heat;
  if (!result || view === "picture") paint($("canvas"), bitmap);
  else if (heat) paint($("canvas"), bitmap, layer(heatImage(result.of(word), result.width, table, state.opacity, state.threshold)), true);
  else paint($("canvas"), bitmap, layer(maskImage(mask, result.width, state.about.colours, state.opacity, doubted(state.header))));
  $("hatched").hidden = heat || !result || view !== "mask" || !doubted(state.header).size;
  said(!result ? "" : heat ? state.header.classes[word].name : view === "mask" ? "all words" : "");
  words.mark(heat ? word : null);
  cross();
}

function said(name) {
  $("shown").replaceChildren();
  if (name) $("shown").append("Showing ", Object.assign(document.createElement("b"), { textContent: name }), ` by ${NAMES[state.method]?.toLowerCase() || state.method}`);
}

function cross() {
  const place = pointing.place;
  if (!place || document.activeElement !== $("canvas")) return;
  const canvas = $("canvas"), context = canvas.getContext("2d");
  const x = ((place[0] + 0.5) / state.bitmap.width) * canvas.width, y = ((place[1] + 0.5) / state.bitmap.height) * canvas.height;
  for (const [style, wide] of [["#000", 5], ["#fff", 2]]) {
    context.strokeStyle = style;
    context.lineWidth = wide;
    context.beginPath();
    context.arc(x, y, 9, 0, 2 * Math.PI);
    context.stroke();
  }
}

function pointed(place, aloud) {
  const { result } = state;
  if (document.activeElement === $("canvas")) draw();
  if (!result || !place) return pixels.show(null);
  const pixel = place[1] * result.width + place[0];
  const shares = result.probabilities(pixel, state.threshold, state.header.temperature);
  pixels.show(shares, state.header.classes.map((row) => row.name), state.about.colours, aloud);
}

function layout() {
  if (!state.bitmap) return;
  const width = $("stage").clientWidth - 2, height = Math.max(300, innerHeight - 230);
  resize($("canvas"), fitted(state.bitmap, width, innerWidth < 761 ? width : height));
  comparison.size(fitted(state.bitmap, width - 28, innerWidth < 761 ? width : Math.max(260, height - 230)));
  draw();
}

// ---- the beginning ----

export async function start(about, session) {
  state.about = about;
  table = ramp(about.heat);
  jobs = new Jobs($("align-job"));
  const hint = about.words.length ? "type a word, such as owl" : "type a word";
  chips = new Chips($("classes"), { label: "What may be in it", hint, most: about.most.classes, known: about.words, colours: about.colours });
  words = new WordList($("list"), $("list-empty"), {
    look: (word) => { state.word = word; draw(); },
    pin: (word) => { state.pinned = state.pinned === word ? null : word; refresh(); },
    pinned: () => state.pinned,
  });
  pixels = new PixelList($("pixel"), $("pixel-empty"), $("pixel-said"));
  pointing = new Pointing($("canvas"), pointed);
  comparison = new Comparison($("compare"), state, concluded);
  const scale = $("scale").querySelector("canvas");
  scale.getContext("2d").putImageData(heatImage(Float32Array.from({ length: 1600 }, (_, i) => (i % 160) / 159), 160, table, 1), 0, 0);
  methods(about);
  listen();
  downloads();
  refresh();
  if (session.picture) await resume(session);
}

function methods(about) {
  for (const name of ["attention", "paper", "elbo", "dense"]) {
    const label = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
    Object.assign(input, { type: "radio", name: "method", value: name, checked: name === state.method });
    text.textContent = NAMES[name];
    input.addEventListener("change", () => { $("other").value = ""; choose(name); });
    label.append(input, text);
    $("methods").append(label);
  }
  const others = about.methods.filter((row) => !row.shared);
  $("other").append(...others.map((row) => Object.assign(document.createElement("option"), { value: row.name, textContent: row.name })));
  $("other").addEventListener("change", () => {
    const name = $("other").value || "dense";
    for (const input of $("methods").querySelectorAll("input")) input.checked = input.value === name;
    choose(name);
  });
  choose(state.method);
}

function listen() {
  $("file").addEventListener("change", () => {
    if ($("file").files[0]) upload($("file").files[0]);
    $("file").value = "";
  });
  for (const name of ["scene", "scene-2"]) $(name).addEventListener("click", drawScene);
  $("align").addEventListener("click", run);
  chips.box.addEventListener("enter", run);
  $("without").addEventListener("click", () => {
    const gone = absent();
    state.pinned = null;
    chips.set(chips.words.filter((word) => !gone.includes(word)));
    run();
  });
  for (const input of $("views").querySelectorAll("input")) input.addEventListener("change", () => { state.view = input.value; draw(); });
  $("threshold").addEventListener("input", () => { threshold(Number($("threshold").value)); refresh(); });
  $("opacity").addEventListener("input", opacity);
  opacity();
  threshold(state.threshold);
  let late;
  $("strength").addEventListener("input", () => {
    state.strength[state.method] = Number($("strength").value);
    $("strength-row").querySelector("output").textContent = Number($("strength").value).toFixed(2);
    clearTimeout(late);
    late = setTimeout(() => conclude(false), 60);
  });
  addEventListener("resize", layout);
  addEventListener("tab", layout);
}

function opacity() {
  state.opacity = Number($("opacity").value);
  $("opacity").previousElementSibling.textContent = `${Math.round(100 * state.opacity)} %`;
  draw();
}

function downloads() {
  const files = { mask: ["Mask (PNG)", "mask.png"], overlay: ["Overlay (PNG)", "overlay.png"], result: ["result.json", "result.json"] };
  if (state.about.coco) files.coco = ["COCO (JSON)", "coco.json"];
  for (const [kind, [said_, name]] of Object.entries(files)) {
    $("downloads").append(saved(said_, name, jobs, () => {
      const { measurement, method, strength } = state;
      return { measurement, method, strength: strength[method] ?? null, kind, threshold: state.threshold };
    }));
  }
}

async function resume(session) {
  await show(session.picture);
  if (!session.aligned) {
    chips.set(session.picture.names, true);
    if (session.picture.names.length) run();
    return;
  }
  const { measurement, classes, detail } = session.aligned;
  Object.assign(state, { measurement, classes });
  chips.set(classes, true);
  $("detail").value = detail;
  await conclude(true);
}
