// Lines over the steps as SVG: weights of words, told apart by colour and dashes, named at their ends.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "9 4", "2 4", "12 4 2 4", "5 5"];
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 230, 46, 130, 14, 38];

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// `values[step][line]`; returns a function that marks a step.
export function plot(place, values, names, colours, what) {
  const steps = values.length, flat = values.flat();
  const low = Math.min(1, ...flat), high = Math.max(low + 0.1, ...flat);
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * step) / Math.max(1, steps - 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low));
  const said = names.map((name, line) => {
    const own = values.map((row) => row[line]);
    return `${name}: mean ${(own.reduce((sum, value) => sum + value, 0) / steps).toFixed(2)}`;
  });
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": `${what} over ${steps} steps. ${said.join("; ")}` });
  for (let tick = 0; tick <= 4; tick++) {
    const value = low + ((high - low) * tick) / 4;
    svg.append(element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(element("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
  }
  svg.append(element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
  const every = Math.max(1, Math.ceil(steps / 8));
  for (let step = 0; step < steps; step += every) svg.append(element("text", { x: x(step), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, step + 1));
  svg.append(element("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "step, from noise to picture"));
  const ends = spread(names.map((_, line) => y(values[steps - 1][line])));
  names.forEach((name, line) => {
    const points = values.map((row, step) => `${x(step).toFixed(1)},${y(row[line]).toFixed(1)}`).join(" ");
    svg.append(element("polyline", { class: "line", points, stroke: colours[line], "stroke-dasharray": DASHES[line % DASHES.length] }));
    svg.append(element("rect", { x: WIDTH - RIGHT + 8, y: ends[line] - 5, width: 10, height: 10, rx: 3, fill: colours[line] }));
    svg.append(element("text", { class: "name", x: WIDTH - RIGHT + 23, y: ends[line] + 4 }, name));
  });
  const now = element("line", { class: "now", x1: LEFT, x2: LEFT, y1: TOP, y2: HEIGHT - BOTTOM });
  svg.append(now);
  place.replaceChildren(svg);
  return (step) => ["x1", "x2"].forEach((end) => now.setAttribute(end, x(step)));
}

// Heights at least 16 apart, in their order.
function spread(heights) {
  const order = heights.map((_, line) => line).sort((one, other) => heights[one] - heights[other]);
  const placed = [...heights];
  let last = -Infinity;
  for (const line of order) last = placed[line] = Math.max(placed[line], last + 16);
  const over = Math.max(0, last - (HEIGHT - BOTTOM));
  return placed.map((height) => Math.max(TOP, height - over));
}
