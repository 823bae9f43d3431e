// The words with their verdicts, and the words at the pixel that is pointed at.

const VERDICTS = { sure: "✓ Sure", confused: "⇄ Confused", blind: "∅ Blind", absent: "– Absent" };
export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);

// The labels whose map is not to be believed: they are hatched.
export const doubted = (header) => new Set(header.classes.flatMap((row, index) => (row.verdict === "sure" ? [] : [index + 1])));

const element = (tag, look, text = "") => Object.assign(document.createElement(tag), { className: look, textContent: text });

export class WordList {
  // `look(index or null)` while a word is pointed at, `pin(index)` when it is pressed.
  constructor(list, empty, { look, pin, pinned }) {
    Object.assign(this, { list, empty, look, pin, pinned, names: "" });
  }

  show(header, shares, colours) {
    this.empty.hidden = Boolean(header);
    if (!header) {
      this.names = "";
      return this.list.replaceChildren();
    }
    const names = JSON.stringify(header.classes.map((row) => row.name));
    if (names !== this.names) this.list.replaceChildren(...header.classes.map((row, index) => this.row(row, index, colours)));
    this.names = names;
    [...this.list.querySelectorAll("button")].forEach((button, index) => {
      const row = header.classes[index];
      button.setAttribute("aria-pressed", this.pinned() === index);
      button.querySelector(".share").textContent = percent(shares[index + 1]);
      button.querySelector("i").classList.toggle("doubted", row.verdict !== "sure");
      const verdict = button.querySelector(".verdict");
      verdict.className = `verdict ${row.verdict}`;
      verdict.textContent = VERDICTS[row.verdict] + (row.other ? ` with ${row.other}` : "");
      const score = row.score === null ? "" : ` Score ${row.score.toFixed(2)}.`;
      button.querySelector(".sentence").textContent = `: ${row.sentence}.${score}`;
    });
  }

  row(row, index, colours) {
    const item = document.createElement("li"), button = element("button", "word");
    button.type = "button";
    const swatch = element("i", ""), why = element("span", "why");
    swatch.style.setProperty("--own", colours[index]);
    why.append(element("span", "verdict"), element("span", "sentence"));
    button.append(swatch, element("b", "", row.name), element("span", "share"), why);
    for (const [event, word] of [["pointerenter", index], ["focus", index], ["pointerleave", null], ["blur", null]]) {
      button.addEventListener(event, (about) => about.pointerType !== "touch" && this.look(word));
    }
    button.addEventListener("click", () => this.pin(index));
    item.append(button);
    return item;
  }

  mark(word) {
    [...this.list.querySelectorAll("button")].forEach((button, index) => button.classList.toggle("shown-now", index === word));
  }
}

export class PixelList {
  constructor(list, empty, said) {
    Object.assign(this, { list, empty, said });
  }

  // Shares [background, words ...], the largest first; read out where `aloud`.
  show(shares, names = [], colours = [], aloud = false) {
    this.empty.hidden = Boolean(shares);
    if (!shares) return this.list.replaceChildren();
    const ranked = shares.map((share, index) => ({ share, index })).sort((one, other) => other.share - one.share);
    this.list.replaceChildren(...ranked.slice(0, 8).map(({ share, index }) => {
      const item = document.createElement("li"), swatch = element("i", index ? "" : "none");
      if (index) swatch.style.background = colours[index - 1];
      const bar = element("div", "bar"), filled = document.createElement("span");
      filled.style.width = `${100 * share}%`;
      if (index) filled.style.background = colours[index - 1];
      bar.append(filled);
      item.append(swatch, element("span", "", index ? names[index - 1] : "background"), element("span", "share", percent(share)), bar);
      return item;
    }));
    clearTimeout(this.late);
    if (aloud) {
      const spoken = ranked.slice(0, 3).map(({ share, index }) => `${index ? names[index - 1] : "background"} ${percent(share)}`);
      this.late = setTimeout(() => { this.said.textContent = spoken.join(", "); }, 250);
    }
  }
}
