// Files for the person: from the server, or what the page holds already.

import { postBlob } from "./api.js";

export function keep(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function button(said, pressed) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "small";
  made.textContent = said;
  made.addEventListener("click", pressed);
  return made;
}

// A button that fetches a file; `body()` says what is asked.
export function saved(said, name, jobs, body) {
  return button(said, async () => {
    try {
      keep(await postBlob("/api/download", body()), name);
    } catch (error) {
      jobs.fail(error.message);
    }
  });
}
