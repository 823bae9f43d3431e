// The tab "edit": source and target, what may change, and what became of it.

import { getBundle, Jobs, pngUrl } from "./api.js";
import { state as aligned } from "./align.js";
import { button, keep } from "./files.js";
import { heatImage, ramp } from "./maths.js";
import { fitted, layer, paint, Wipe } from "./stage.js";

const $ = (id) => document.getElementById(id);
const METHODS = {
  elbo: "where the calibrated heatmap says (elbo)", dense: "where the evidence says (dense)",
  diffsegmenter: "where DiffSegmenter says", ptp: "where the old words do (Prompt-to-Prompt)",
};
const INVERSIONS = { ddim: "DDIM: quick, less exact", "null-text": "null-text: exact, slow" };

let about, jobs, wipe, result = null;

const options = (names, said) => names.map((value) => Object.assign(document.createElement("option"), { value, textContent: said[value] || value }));

export function start(known, session) {
  about = known;
  jobs = new Jobs($("edit-job"));
  $("e-method").append(...options(about.editing, METHODS));
  $("e-inversion").append(...options(about.inversions, INVERSIONS));
  $("e-inversion").value = "null-text";
  $("edit-form").addEventListener("submit", run);
  for (const input of document.querySelectorAll("input[name=given]")) input.addEventListener("change", from);
  addEventListener("picture", from);
  addEventListener("tab", () => { from(); draw(); });
  addEventListener("resize", draw);
  wipe = new Wipe($("edit-wipe"), "How much of the picture before the edit is shown");
  from();
  if (session.results.includes("edit")) load().catch((error) => jobs.fail(error.message));
}

const given = () => document.querySelector("input[name=given]:checked").value === "yes";

// Which picture is edited; words that were aligned suggest what it shows.
function from() {
  const there = Boolean(aligned.bitmap);
  $("edit-thumb").hidden = !there || !given();
  if (there && $("edit-thumb").picture !== aligned.bitmap) {
    const canvas = new OffscreenCanvas(aligned.bitmap.width, aligned.bitmap.height);
    canvas.getContext("2d").drawImage(aligned.bitmap, 0, 0);
    canvas.convertToBlob().then((blob) => {
      URL.revokeObjectURL($("edit-thumb").src);
      $("edit-thumb").src = URL.createObjectURL(blob);
    });
    $("edit-thumb").picture = aligned.bitmap;
  }
  $("e-inversion").disabled = !given();
  $("edit-from").textContent = !given() ? "The model draws the first text from the seed, and edits that." : there ? "" : "There is none yet: choose one in the tab Align.";
  const names = (aligned.header?.classes || []).filter((row) => row.verdict !== "absent").map((row) => row.name);
  if (there && names.length) $("source").placeholder = `a photo of ${names.join(", ")}`;
}

async function run(event) {
  event.preventDefault();
  const source = $("source").value.trim(), target = $("target").value.trim();
  if (!source || !target) return jobs.fail("say what the picture shows, and what it shall show");
  if (given() && !aligned.bitmap) return jobs.fail("choose a picture in the tab Align first, or edit a drawn one");
  const body = {
    source, target, given: given(), method: $("e-method").value,
    blend: document.querySelector("input[name=blend]:checked").value || null,
    inversion: $("e-inversion").value, steps: Number($("e-steps").value), seed: Number($("e-seed").value),
  };
  if (await jobs.run("/api/edit", body)) await load().catch((error) => jobs.fail(error.message));
}

async function load() {
  const { header, arrays } = await getBundle("/api/results/edit");
  const pictures = {};
  for (const name of ["source", "reconstruction", "edited"]) {
    pictures[name] = await createImageBitmap(new Blob([arrays[name].data], { type: "image/png" }));
  }
  result = { header, arrays, pictures };
  $("source").value = header.source_prompt;
  $("target").value = header.target_prompt;
  $("edit-empty").hidden = true;
  $("edit-result").hidden = false;
  $("edit-pictures").replaceChildren(
    figure("What became of it", arrays.edited, `Edited: ${header.target_prompt}`),
    figure("The way back without the edit", arrays.reconstruction, `Reconstruction: ${header.source_prompt}`),
    ...(arrays.heatmaps ? [heat(header, arrays.heatmaps)] : []),
  );
  said(header);
  $("e-downloads").replaceChildren(button("Edited (PNG)", () => keep(new Blob([arrays.edited.data], { type: "image/png" }), "edited.png")));
  draw();
}

function figure(caption, png, alt) {
  const made = document.createElement("figure");
  const text = Object.assign(document.createElement("figcaption"), { textContent: caption });
  made.append(Object.assign(new Image(), { src: pngUrl(png), alt }), text);
  return made;
}

// The heatmaps of all changed words in one picture, with a line at the threshold.
function heat(header, { shape, data }) {
  const [count, height, width] = shape, size = height * width, most = new Float32Array(size);
  for (let place = 0; place < count * size; place++) most[place % size] = Math.max(most[place % size], data[place]);
  const made = document.createElement("figure"), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = fitted({ width, height }, 512, 512);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Heatmap of what may change: ${header.changes.map(([old]) => old).join(", ")}`);
  const line = header.blend === "heatmap" ? header.threshold : null;
  paint(canvas, result.pictures.source, layer(heatImage(most, width, ramp(about.heat), 0.7, line)), true);
  const text = header.blend === "heatmap" ? "What may change: inside the line" : "The changed words’ heatmap";
  made.append(canvas, Object.assign(document.createElement("figcaption"), { textContent: text }));
  return made;
}

function said(header) {
  const changes = header.changes.map(([old, fresh]) => `“${old || "nothing"}” became “${fresh || "nothing"}”`).join(", ");
  const { psnr, psnr_vae: vae } = header.figures;
  const back = psnr ? ` Without the edit the way back ends ${psnr.toFixed(1)} dB from the picture, and ${vae.toFixed(1)} dB from what the model’s decoder can do.` : "";
  $("edit-said").textContent = `${changes || "No word differs"}.${back}`;
  $("edit-warnings").textContent = header.warnings.join(" ");
}

function draw() {
  if (!result || $("panel-edit").hidden) return;
  const width = $("edit-wipe").clientWidth, { source, edited } = result.pictures;
  wipe.size(fitted(source, width, Math.min(width, Math.max(280, innerHeight - 260))));
  paint(wipe.left, source);
  paint(wipe.right, edited);
}
