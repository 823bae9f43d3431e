// Before, the paper and ours: three small pictures side by side, and two large ones with a wipe.

import { heatImage, Heatmaps, maskImage, ramp } from "./maths.js";
import { layer, paint, Wipe } from "./stage.js";
import { doubted } from "./words.js";

const SIDES = { attention: "Before: attention alone", paper: "The paper: γ = 1/3", dense: "Ours: evidence" };
const SHORT = { attention: "Before", paper: "Paper", dense: "Ours" };

export class Comparison {
  constructor(place, state, concluded) {
    Object.assign(this, { place, state, concluded, results: null, turn: 0 });
    const sides = document.createElement("div");
    sides.className = "sides";
    [this.left, this.right] = [["Left", "attention"], ["Right", "dense"]].map(([name, chosen]) => {
      const select = document.createElement("select");
      select.setAttribute("aria-label", `${name} picture`);
      select.append(...Object.entries(SIDES).map(([value, textContent]) => Object.assign(document.createElement("option"), { value, textContent, selected: value === chosen })));
      select.addEventListener("change", () => this.paint());
      return select;
    });
    sides.append(this.left, this.right);
    place.append(sides);
    this.wipe = new Wipe(place, "How much of the left picture is shown");
    const thumbs = document.createElement("div");
    thumbs.className = "thumbs";
    this.thumbs = Object.entries(SHORT).map(([name, said]) => {
      const figure = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Masks: ${SIDES[name]}`);
      caption.textContent = said;
      figure.append(canvas, caption);
      thumbs.append(figure);
      return { name, canvas, caption };
    });
    const note = Object.assign(document.createElement("p"), { className: "note", textContent: "Each with its own threshold. Point at a word to compare its heatmaps; all three come from the same passes." });
    place.append(thumbs, note);
  }

  forget() {
    this.results = null;
    this.turn++;
  }

  size(size) {
    this.wipe.size(size);
    for (const { canvas } of this.thumbs) [canvas.width, canvas.height] = size.map((side) => Math.round(side / 1.5));
  }

  async show() {
    this.paint();
    if (this.results || !this.state.measurement) return;
    const turn = ++this.turn, results = {};
    for (const name of Object.keys(SIDES)) {
      const { header, arrays } = await this.concluded(name);
      results[name] = { heatmaps: new Heatmaps(arrays.heatmaps), threshold: header.threshold, doubts: doubted(header) };
      if (turn !== this.turn) return;
    }
    this.results = results;
    this.paint();
  }

  // Each by its own threshold; a word that is pinned shows its heatmaps.
  paint() {
    const { bitmap, opacity, pinned, word, about } = this.state;
    const shown = word ?? pinned;
    const over = (name) => {
      const result = this.results?.[name];
      if (!result) return null;
      const { heatmaps, threshold, doubts } = result;
      return layer(shown === null
        ? maskImage(heatmaps.mask(threshold), heatmaps.width, about.colours, opacity, doubts)
        : heatImage(heatmaps.of(shown), heatmaps.width, ramp(about.heat), opacity, threshold));
    };
    const grey = shown !== null && Boolean(this.results);
    paint(this.wipe.left, bitmap, over(this.left.value), grey);
    paint(this.wipe.right, bitmap, over(this.right.value), grey);
    for (const { name, canvas } of this.thumbs) paint(canvas, bitmap, over(name), grey);
  }
}
