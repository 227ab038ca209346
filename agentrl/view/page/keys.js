/** Keys: those of the view that is open, then those that always work. */

import { h } from "./dom.js";

/** Calls what a key stands for in the first of `maps()` that knows it; fields keep their own. */
export function listenToKeys(maps) {
  addEventListener("keydown", (event) => {
    const target = event.target;
    if (event.key === "Escape" && target.closest?.("input, select")) return target.blur();
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    // A dialog that was closed keeps the focus for a moment: only an open one keeps its keys.
    if (target.closest?.("input, select, textarea, dialog[open]")) return;
    if (event.key === "Enter" && target.closest?.("button, a, summary, [role=link]")) return;
    const act = maps().find((keys) => event.key in keys)?.[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

const HELP = {
  Anywhere: {
    "1 2 3": "overview, groups, trajectories",
    4: "tasks of two runs",
    "/": "search",
    d: "dark or light",
    "?": "these keys",
    "Esc or u": "one level up",
  },
  "In a table": { "j k or ↓ ↑": "next and previous row", Enter: "open it" },
  "In a group": {
    "j k": "next and previous trajectory",
    Enter: "open it",
    m: "mark it for comparison",
    c: "compare the two that are marked",
    "n p": "next and previous group",
  },
  "In a trajectory": {
    "j k": "next and previous of its group",
    t: "tokens or conversation",
    "s e a r v": "colour tokens by source, entropy, advantage, ratio, version age",
    "← →": "previous and next token",
    m: "mark it for comparison",
    c: "compare the two that are marked",
  },
  "In a comparison": { t: "tokens or conversation", n: "where they part" },
};

/** Makes the dialog that lists the keys. */
export function makeHelp() {
  const keyed = (keys) => keys.split(" ").map((key) => (key === "or" ? " or " : h("kbd", {}, key)));
  const sections = Object.entries(HELP).map(([where, keys]) =>
    h("section", {}, h("h3", {}, where), h("dl", {}, Object.entries(keys).map(([key, what]) => h("div", {}, h("dt", {}, keyed(key)), h("dd", {}, what))))),
  );
  const dialog = h(
    "dialog",
    { "aria-label": "Keys", onclick: (event) => event.target === dialog && dialog.close() },
    h("h2", {}, "Keys"),
    h("div", { class: "help" }, sections),
    h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Close"),
  );
  return dialog;
}
