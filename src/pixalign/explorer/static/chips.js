// A list of words that are typed, pasted, suggested and taken away.

let lists = 0;

export class Chips {
  // `colours` by place, `known` words to suggest; `changed` is called with the words.
  constructor(place, { label, hint, most, known = [], colours = [], changed = () => {} }) {
    Object.assign(this, { most, colours, changed, words: [] });
    const name = `chips-${++lists}`;
    this.box = document.createElement("div");
    this.box.className = "chips";
    this.input = document.createElement("input");
    Object.assign(this.input, { id: name, type: "text", maxLength: 80, autocomplete: "off", placeholder: hint });
    const title = document.createElement("label");
    title.htmlFor = name;
    title.className = "note";
    title.textContent = label;
    this.said = document.createElement("p");
    this.said.className = "note";
    this.said.setAttribute("aria-live", "polite");
    if (known.length) {
      const list = document.createElement("datalist");
      list.id = `${name}-known`;
      list.append(...known.map((word) => Object.assign(document.createElement("option"), { value: word })));
      this.input.setAttribute("list", list.id);
      place.append(list);
    }
    this.box.append(this.input);
    place.append(title, this.box, this.said);
    this.box.addEventListener("click", (event) => event.target === this.box && this.input.focus());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("input", () => this.input.value.includes(",") && this.take());
    this.input.addEventListener("change", () => this.take());
  }

  key(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      if (this.take()) return;
      this.box.dispatchEvent(new CustomEvent("enter", { bubbles: true }));
    } else if (event.key === "Backspace" && !this.input.value && this.words.length) {
      this.set(this.words.slice(0, -1));
    }
  }

  // What is typed becomes chips; whether any did.
  take() {
    const typed = this.input.value.split(",").map((word) => word.trim().replace(/\s+/g, " ")).filter(Boolean);
    this.input.value = "";
    if (!typed.length) return false;
    const there = new Set(this.words.map((word) => word.toLowerCase()));
    const fresh = [];
    for (const word of typed) {
      if (there.has(word.toLowerCase())) continue;
      there.add(word.toLowerCase());
      fresh.push(word);
    }
    const words = [...this.words, ...fresh];
    this.set(words.slice(0, this.most));
    if (words.length > this.most) this.said.textContent = `At most ${this.most} words at once.`;
    else if (!fresh.length) this.said.textContent = `“${typed[0]}” is there already.`;
    return fresh.length > 0;
  }

  set(words, quietly = false) {
    this.words = words;
    this.said.textContent = "";
    this.box.replaceChildren(...words.map((word, place) => this.chip(word, place)), this.input);
    if (!quietly) this.changed(words);
  }

  chip(word, place) {
    const chip = document.createElement("span");
    chip.className = "chip";
    if (this.colours.length) {
      const swatch = document.createElement("i");
      swatch.style.background = this.colours[place % this.colours.length];
      chip.append(swatch);
    }
    const away = document.createElement("button");
    away.type = "button";
    away.textContent = "×";
    away.setAttribute("aria-label", `Remove ${word}`);
    away.addEventListener("click", () => {
      this.set(this.words.filter((other) => other !== word));
      this.input.focus();
    });
    chip.append(word, away);
    return chip;
  }
}
