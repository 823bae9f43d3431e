// Pictures on canvases: the large one that is pointed at, and the wipe between two.

export function layer(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Draws a picture, grey where something coloured shall stand out, and what lies over it.
export function paint(canvas, picture, over = null, grey = false) {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.filter = grey ? "grayscale(1)" : "none";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  context.filter = "none";
  context.imageSmoothingEnabled = !over || canvas.width > over.width * 1.2 === false || grey;
  if (over) context.drawImage(over, 0, 0, canvas.width, canvas.height);
}

// As large as a picture fits: [width, height] in CSS pixels.
export function fitted(picture, width, height) {
  const scale = Math.min(width / picture.width, height / picture.height);
  return [Math.max(1, Math.round(picture.width * scale)), Math.max(1, Math.round(picture.height * scale))];
}

export function resize(canvas, [width, height]) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

// A canvas that tells which pixel of the picture is pointed at, by pointer or arrow keys.
export class Pointing {
  constructor(canvas, told) {
    this.canvas = canvas;
    this.told = told;
    this.place = null;
    canvas.addEventListener("pointermove", (event) => this.at(event));
    canvas.addEventListener("pointerdown", (event) => this.at(event));
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.tell(null, false);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.tell(null, false));
  }

  at(event) {
    if (!this.picture) return;
    const box = this.canvas.getBoundingClientRect();
    const share = (at, from, side) => Math.min(0.9999, Math.max(0, (at - from) / side));
    this.tell([
      Math.floor(share(event.clientX, box.left, box.width) * this.picture.width),
      Math.floor(share(event.clientY, box.top, box.height) * this.picture.height),
    ], false);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (!move || !this.picture) return;
    event.preventDefault();
    const { width, height } = this.picture;
    const step = Math.max(1, Math.round((event.shiftKey ? 0.08 : 0.015) * width));
    const [x, y] = this.place || [width >> 1, height >> 1];
    const kept = (value, side) => Math.min(side - 1, Math.max(0, value));
    this.tell([kept(x + step * move[0], width), kept(y + step * move[1], height)], true);
  }

  tell(place, aloud) {
    this.place = place;
    this.told(place, aloud);
  }
}

// Two pictures over each other with an edge between them that is dragged, or moved by the arrow keys.
export class Wipe {
  constructor(place, name) {
    this.box = document.createElement("div");
    this.box.className = "wipe";
    this.left = document.createElement("canvas");
    this.right = document.createElement("canvas");
    this.edge = document.createElement("div");
    this.edge.className = "edge";
    this.slider = document.createElement("input");
    Object.assign(this.slider, { type: "range", min: 0, max: 100, step: 0.5, value: 50 });
    this.slider.setAttribute("aria-label", name);
    this.slider.addEventListener("input", () => this.moved());
    this.box.append(this.right, this.left, this.edge, this.slider);
    place.append(this.box);
    this.moved();
  }

  moved() {
    const share = Number(this.slider.value);
    this.left.style.clipPath = `inset(0 ${100 - share}% 0 0)`;
    this.edge.style.left = `calc(${share}% - 1px)`;
  }

  size(size) {
    for (const canvas of [this.left, this.right]) resize(canvas, size);
    for (const canvas of [this.left, this.right]) canvas.style.width = canvas.style.height = "100%";
    this.box.style.width = `${size[0]}px`;
    this.box.style.aspectRatio = `${size[0]} / ${size[1]}`;
  }
}
