// The page begins: theme, tabs, the session, dropped and pasted pictures.

import { begin, get } from "./api.js";
import * as align from "./align.js";
import * as generate from "./generate.js";
import * as edit from "./edit.js";

const $ = (id) => document.getElementById(id);

// ---- theme ----

const THEMES = { auto: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function theme(name) {
  const [sign, said] = THEMES[name];
  document.documentElement.dataset.theme = name;
  $("theme").textContent = sign;
  $("theme").setAttribute("aria-label", `Colours: ${said}`);
  $("theme").title = `Colours: ${said}`;
  localStorage.setItem("pixalign-theme", name);
}

theme(localStorage.getItem("pixalign-theme") in THEMES ? localStorage.getItem("pixalign-theme") : "auto");
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
});

// ---- tabs ----

const tabs = [...document.querySelectorAll("[role=tab]")];

function open(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.id.slice(4)}`);
  dispatchEvent(new CustomEvent("tab", { detail: tab.id.slice(4) }));
}

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    open(next);
    next.focus();
  });
});

// ---- pictures from outside ----

let depth = 0;
const holds = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragenter", (event) => holds(event) && (depth++, $("drop").classList.add("on")));
addEventListener("dragleave", (event) => holds(event) && --depth <= 0 && $("drop").classList.remove("on"));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  $("drop").classList.remove("on");
  const file = event.dataTransfer?.files[0];
  if (file) arrived(file);
});
addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files || [])].find((item) => item.type.startsWith("image/"));
  if (file) arrived(file);
});

function arrived(file) {
  open($("tab-align"));
  align.upload(file);
}

// ---- the beginning ----

async function start() {
  try {
    const [about, state] = await Promise.all([get("/api/about"), begin()]);
    $("model").textContent = `${about.model.name} · ${about.device}`;
    $("version").textContent = `pixalign ${about.version}`;
    await align.start(about, state);
    generate.start(about, state);
    edit.start(about, state);
    const named = tabs.find((tab) => `#${tab.id.slice(4)}` === location.hash);
    if (named) open(named);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    $("fatal").textContent = `This page could not begin: ${error.message}`;
    $("fatal").hidden = false;
  }
}

start();
