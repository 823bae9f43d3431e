// The tab "generate": a prompt drawn plainly and calibrated, and its words step by step.

import { getBundle, Jobs, pngUrl, post } from "./api.js";
import { Chips } from "./chips.js";
import { button, keep } from "./files.js";
import { heatImage, ramp } from "./maths.js";
import { plot } from "./plot.js";
import { layer } from "./stage.js";

const $ = (id) => document.getElementById(id);
const MOMENTS = { plain: "plain", calibrated: "calibrated" };
const SAID = { elbo: "Calibrated by the likelihood", "attend-excite": "Attend-and-Excite", syngen: "SynGen" };

export const state = { about: null, result: null, step: 0, named: false };
let jobs, chips, table, mark = () => {}, playing = 0;

export function start(about, session) {
  state.about = about;
  table = ramp(about.heat);
  jobs = new Jobs($("generate-job"));
  const label = "What must not be missing";
  chips = new Chips($("entities"), {
    label, hint: "words of the prompt", most: about.most.classes, colours: about.colours,
    changed: () => { state.named = true; note(); },
  });
  $("g-method").append(...about.generation.map((value) => Object.assign(document.createElement("option"), { value, textContent: SAID[value] || value })));
  const strength = () => { $("g-strength").previousElementSibling.textContent = Number($("g-strength").value).toFixed(2); };
  $("g-strength").addEventListener("input", strength);
  strength();
  let late;
  $("prompt").addEventListener("input", () => {
    clearTimeout(late);
    late = setTimeout(find, 450);
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  });
  $("generate-form").addEventListener("submit", run);
  $("step").addEventListener("input", () => show(Number($("step").value)));
  $("play").addEventListener("click", play);
  note();
  if (session.results.includes("generate")) load(true).catch((error) => jobs.fail(error.message));
}

function note(said = "") {
  const found = state.about.entities ? "Found in the prompt; take away or add what you like." : "Finding them needs spaCy; name them here.";
  $("entities-note").textContent = said || found;
}

// The entities of the prompt, unless the person has named some that it still holds.
async function find() {
  const prompt = $("prompt").value.trim();
  const lower = prompt.toLowerCase();
  if (state.named && chips.words.length && chips.words.every((word) => lower.includes(word.toLowerCase()))) return;
  if (!prompt || !state.about.entities) return;
  try {
    const { entities } = await post("/api/entities", { prompt });
    if ($("prompt").value.trim() !== prompt) return;
    state.named = false;
    chips.set(entities, true);
    note(entities.length ? "" : "Nothing was found; name what must not be missing.");
  } catch (error) {
    note(error.message);
  }
}

async function run(event) {
  event.preventDefault();
  chips.take();
  const prompt = $("prompt").value.trim();
  if (!prompt) return jobs.fail("type a prompt first");
  if (!chips.words.length) await find();
  const body = {
    prompt, entities: chips.words, method: $("g-method").value, strength: Number($("g-strength").value),
    steps: Number($("g-steps").value), seed: Number($("g-seed").value),
  };
  if (await jobs.run("/api/generate", body)) await load(false).catch((error) => jobs.fail(error.message));
}

async function load(again) {
  const { header, arrays } = await getBundle("/api/results/generate");
  state.result = { header, arrays };
  if (again) {
    $("prompt").value = header.prompt;
    chips.set(header.words, true);
  }
  $("generate-empty").hidden = true;
  $("generate-result").hidden = false;
  for (const name of Object.keys(MOMENTS)) {
    const image = $(`g-${name}`);
    URL.revokeObjectURL(image.src);
    image.src = pngUrl(arrays[name]);
    image.alt = `${header.prompt}, drawn ${name === "plain" ? "plainly" : `by ${header.method}`}`;
  }
  $("g-caption").textContent = `${SAID[header.method] || header.method} · seed ${header.seed}`;
  weights(header, arrays.weights);
  scrubber(header, arrays);
  $("g-downloads").replaceChildren(...Object.keys(MOMENTS).map((name) =>
    button(`${name === "plain" ? "Plain" : "Calibrated"} (PNG)`, () => keep(new Blob([arrays[name].data], { type: "image/png" }), `${name}.png`))));
}

function weights(header, { shape, data }) {
  const [steps, count] = shape;
  $("plot").closest("section").hidden = !count;
  if (!count) return;
  const values = Array.from({ length: steps }, (_, step) => Array.from(data.subarray(step * count, (step + 1) * count)));
  const names = header.entities.map((entity) => entity.text);
  mark = plot($("plot"), values, names, state.about.colours, "Weights of the words");
}

function scrubber(header, arrays) {
  const maps = arrays.calibrated_maps;
  $("maps").closest("section").hidden = !maps;
  if (!maps) return;
  const [steps, , height, width] = maps.shape;
  $("maps").style.setProperty("--shape", `${width} / ${height}`);
  $("maps").replaceChildren(...header.words.map((word) => {
    const figure = document.createElement("figure"), title = document.createElement("figcaption");
    title.textContent = word;
    figure.append(title);
    for (const name of Object.keys(MOMENTS)) {
      const canvas = Object.assign(document.createElement("canvas"), { width, height });
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Map of ${word}, ${name}`);
      figure.append(canvas);
    }
    figure.append(...Object.values(MOMENTS).map((said) => Object.assign(document.createElement("small"), { textContent: said })));
    return figure;
  }));
  $("step").max = steps - 1;
  $("step").value = steps - 1;
  show(steps - 1);
}

// The maps at a step, each brought to its own range from 0 to 1.
function show(step) {
  state.step = step;
  const { header, arrays } = state.result;
  $("step").value = step;
  $("step-said").textContent = `step ${step + 1} of ${Number($("step").max) + 1}`;
  mark(step);
  const figures = [...$("maps").children];
  header.words.forEach((_, word) => {
    Object.keys(MOMENTS).forEach((name, place) => {
      const { shape, data } = arrays[`${name}_maps`];
      const [, words, height, width] = shape, size = height * width;
      const values = data.subarray((step * words + word) * size, (step * words + word + 1) * size);
      const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
      const image = heatImage(values.map((value) => (value - low) / span), width, table, 1);
      figures[word].querySelectorAll("canvas")[place].getContext("2d").drawImage(layer(image), 0, 0);
    });
  });
}

function play() {
  if (playing) return stop();
  $("play").textContent = "Pause";
  const last = Number($("step").max);
  if (state.step >= last) show(0);
  playing = setInterval(() => (state.step < last ? show(state.step + 1) : stop()), 160);
}

function stop() {
  clearInterval(playing);
  playing = 0;
  $("play").textContent = "Play";
}
