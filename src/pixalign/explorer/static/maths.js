// What the library computes of heatmaps, in the browser: masks, probabilities, colours.

// Heatmaps [N, H, W] with, for every pixel, the largest value and whose it is.
export class Heatmaps {
  constructor({ shape, data }) {
    [this.count, this.height, this.width] = shape;
    this.data = data;
    const pixels = this.height * this.width;
    this.peak = new Float32Array(pixels);
    this.label = new Uint8Array(pixels); // 1 ... N; the first of equals, as in the library
    for (let pixel = 0; pixel < pixels; pixel++) {
      let best = data[pixel], who = 0;
      for (let index = 1; index < this.count; index++) {
        const value = data[index * pixels + pixel];
        if (value > best) [best, who] = [value, index];
      }
      this.peak[pixel] = best;
      this.label[pixel] = who + 1;
    }
  }

  of(index) {
    const pixels = this.height * this.width;
    return this.data.subarray(index * pixels, (index + 1) * pixels);
  }

  // Uint8Array [H * W]: 0 where no heatmap reaches the threshold, else 1 ... N.
  mask(threshold) {
    const bound = Math.fround(threshold);
    return this.label.map((who, pixel) => (this.peak[pixel] < bound ? 0 : who));
  }

  // The share of the pixels of each label, background first.
  shares(mask) {
    const counts = new Array(this.count + 1).fill(0);
    for (const label of mask) counts[label]++;
    return counts.map((count) => count / mask.length);
  }

  // Of one pixel: softmax([threshold, heatmaps] / temperature), background first.
  probabilities(pixel, threshold, temperature) {
    const bound = Math.fround(threshold), pixels = this.height * this.width;
    const tie = this.peak[pixel] === bound ? 1e-6 * temperature : 0;
    const logits = [bound - tie];
    for (let index = 0; index < this.count; index++) logits.push(this.data[index * pixels + pixel]);
    const most = Math.max(...logits);
    const weights = logits.map((logit) => Math.exp((logit - most) / temperature));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return weights.map((weight) => weight / sum);
  }
}

export const rgb = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));

// Uint8ClampedArray [256, 3]: colours from 0 to 1 through the stops.
export function ramp(stops) {
  const known = stops.map(rgb), table = new Uint8ClampedArray(256 * 3);
  for (let value = 0; value < 256; value++) {
    const place = (value / 255) * (known.length - 1);
    const low = Math.min(Math.floor(place), known.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      table[3 * value + channel] = known[low][channel] + (place - low) * (known[low + 1][channel] - known[low][channel]);
    }
  }
  return table;
}

// Whether a pixel's label differs from the one above it or to its left.
export function edges(labels, width) {
  const edge = new Uint8Array(labels.length);
  for (let pixel = 0; pixel < labels.length; pixel++) {
    const left = pixel % width ? labels[pixel - 1] : labels[pixel];
    const above = pixel >= width ? labels[pixel - width] : labels[pixel];
    edge[pixel] = labels[pixel] !== left || labels[pixel] !== above ? 1 : 0;
  }
  return edge;
}

// A picture of labels [H * W] in their colours, with outlines; background is clear, and labels in
// `doubted` are hatched.
export function maskImage(labels, width, colours, opacity, doubted = new Set()) {
  const image = new ImageData(width, labels.length / width), edge = edges(labels, width);
  const table = [[0, 0, 0], ...colours.map(rgb)], period = Math.max(5, Math.round(width / 40));
  for (let pixel = 0; pixel < labels.length; pixel++) {
    const line = edge[pixel] && opacity > 0;
    if (!labels[pixel] && !line) continue;
    const gap = doubted.has(labels[pixel]) && ((pixel % width) + Math.floor(pixel / width)) % period > period / 3;
    if (gap && !line) continue;
    const colour = line ? [255, 255, 255] : table[labels[pixel]];
    image.data.set(colour, 4 * pixel);
    image.data[4 * pixel + 3] = line ? 230 : 255 * opacity;
  }
  return image;
}

// A picture of values [H * W] in [0, 1] in the ramp's colours; a line where they reach the threshold.
export function heatImage(values, width, table, opacity, threshold = null) {
  const image = new ImageData(width, values.length / width);
  const edge = threshold === null ? null : edges(values.map((value) => (value >= Math.fround(threshold) ? 1 : 0)), width);
  for (let pixel = 0; pixel < values.length; pixel++) {
    const place = 3 * Math.round(255 * Math.min(1, Math.max(0, values[pixel])));
    const line = edge && edge[pixel];
    for (let channel = 0; channel < 3; channel++) image.data[4 * pixel + channel] = line ? 255 : table[place + channel];
    image.data[4 * pixel + 3] = line ? 240 : 255 * opacity;
  }
  return image;
}
