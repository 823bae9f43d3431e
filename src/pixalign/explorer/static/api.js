// What the server is asked: a session for this tab, JSON, bundles of arrays, jobs with progress.

const KEPT = "pixalign-session";
let session = sessionStorage.getItem(KEPT) || "";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body, raw = false) {
  const headers = { "X-Pixalign-Session": session };
  if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: raw || body === undefined ? body : JSON.stringify(body) });
  } catch {
    throw new ServerError("the server does not answer; is it still running?", 0);
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new ServerError(said.error || `the server answered ${answer.status}`, answer.status);
}

export const get = async (path) => (await ask("GET", path)).json();
export const post = async (path, body) => (await ask("POST", path, body)).json();
export const putFile = async (path, file) => (await ask("PUT", path, file, true)).json();
export const getBlob = async (path) => (await ask("GET", path)).blob();
export const postBlob = async (path, body) => (await ask("POST", path, body)).blob();
export const getBundle = async (path) => unpack(await (await ask("GET", path)).arrayBuffer());
export const postBundle = async (path, body) => unpack(await (await ask("POST", path, body)).arrayBuffer());

// The session that this tab had before it was loaded again, or a new one.
export async function begin() {
  if (session) {
    try {
      return await get("/api/session");
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }
  const state = await post("/api/session");
  session = state.session;
  sessionStorage.setItem(KEPT, session);
  return state;
}

const KINDS = { float32: Float32Array, uint8: Uint8Array };

// {header, arrays: {name: {shape, data}}} of what `pixalign.explorer.bundle.pack` writes.
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const { name, dtype, shape, begin: from } of header.arrays) {
    const count = shape.reduce((product, side) => product * side, 1);
    arrays[name] = { shape, data: new KINDS[dtype](buffer, 4 + length + from, count) };
  }
  return { header, arrays };
}

export const pngUrl = (array) => URL.createObjectURL(new Blob([array.data], { type: "image/png" }));

const STAGES = {
  dense: "Reading attention, and asking the likelihood of each word",
  elbo: "Reading attention, and asking the likelihood of each word",
  likelihood: "Asking the likelihood without each word",
  generate: "Drawing",
  draw: "Drawing the picture to edit",
  invert: "Finding the noise that the picture comes from",
  "null-text": "Fitting the empty text so that the way leads back",
  edit: "Drawing source and target side by side",
};
let running = null;

addEventListener("pagehide", () => {
  if (running) fetch(`/api/jobs/${running}`, { method: "DELETE", keepalive: true, headers: { "X-Pixalign-Session": session } });
});

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Runs jobs one after the other; shows in `place` how far the job is, with a button to cancel it.
export class Jobs {
  constructor(place) {
    this.place = place;
    this.turn = 0;
  }

  // The job's result; null where it was cancelled, failed (which is shown), or another has begun.
  async run(path, body) {
    const turn = ++this.turn;
    if (this.current) await this.cancel();
    this.show("Asking…");
    try {
      let job = await post(path, body);
      this.current = running = job.job;
      while (job.state === "waiting" || job.state === "running") {
        if (turn === this.turn) this.progress(job);
        await pause(job.done ? 150 : 80);
        job = await get(`/api/jobs/${job.job}`);
      }
      if (turn !== this.turn) return null;
      this.current = running = null;
      if (job.state === "failed") throw new ServerError(job.error);
      this.place.replaceChildren();
      if (job.state === "cancelled") this.say("Cancelled.");
      return job.state === "done" ? job.result || {} : null;
    } catch (error) {
      if (turn === this.turn) this.fail(error.message);
      return null;
    }
  }

  async cancel() {
    const name = this.current;
    this.current = running = null;
    if (name) await ask("DELETE", `/api/jobs/${name}`).catch(() => {});
  }

  progress(job) {
    const ahead = job.ahead === 1 ? "one other is computing" : `${job.ahead} are ahead`;
    const said = job.state === "waiting" ? `Waiting: ${ahead}` : STAGES[job.stage] || (job.stage ? `Reading by ${job.stage}` : "Starting");
    this.show(said, job.total ? job.done / job.total : undefined);
  }

  show(said, share) {
    if (!this.bar) {
      this.box = document.createElement("div");
      this.box.className = "job";
      this.text = document.createElement("p");
      this.text.setAttribute("role", "status");
      this.stop = document.createElement("button");
      this.stop.type = "button";
      this.stop.className = "small";
      this.stop.textContent = "Cancel";
      this.stop.addEventListener("click", async () => {
        this.stop.disabled = true;
        this.text.textContent = "Cancelling…";
        if (this.current) await ask("DELETE", `/api/jobs/${this.current}`).catch(() => {});
      });
      this.bar = document.createElement("progress");
      this.bar.max = 1;
      this.bar.setAttribute("aria-label", "How far it is");
      this.box.append(this.text, this.stop, this.bar);
    }
    if (this.box.parentNode !== this.place) {
      this.place.replaceChildren(this.box);
      this.stop.disabled = false;
    }
    if (!this.stop.disabled && this.text.textContent !== said) this.text.textContent = said;
    if (share === undefined) this.bar.removeAttribute("value");
    else this.bar.value = share;
  }

  say(said) {
    this.fail(said, "job");
  }

  fail(said, look = "job failed") {
    const box = document.createElement("div");
    box.className = look;
    const text = document.createElement("p");
    text.setAttribute("role", look === "job" ? "status" : "alert");
    text.textContent = said.charAt(0).toUpperCase() + said.slice(1);
    box.append(text);
    this.place.replaceChildren(box);
  }
}
