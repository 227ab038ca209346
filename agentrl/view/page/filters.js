/** The bar above a table of groups or trajectories. */

import { saying } from "./data.js";
import { button, fill, h } from "./dom.js";
import { FAILED, filterOf, queryOf, RANGES } from "./filter.js";
import { words } from "./format.js";

const NAMES = { reward: "Reward", entropy: "Entropy", tokens: "Tokens", step: "Step" };

/** Makes the bar; `onFilter(filter, said)` hears of every change, `filter` is changed in place. */
export function makeFilters({ filter, onFilter }) {
  let run = null;
  let said = null;
  let searches = 0;
  const found = h("span", { class: "found", role: "status" });
  const changed = () => {
    clear.hidden = !Object.keys(queryOf(filter)).length;
    onFilter(filter, said);
  };
  const forget = () => {
    searches++;
    said = null;
    filter.everything = false;
  };

  async function searchAll() {
    const text = filter.q.trim();
    if (!text) return;
    const mine = ++searches;
    filter.everything = true;
    const ids = new Set();
    found.textContent = "searching all that was said…";
    for await (const part of saying(run, text)) {
      if (mine !== searches) return;
      for (const id of part.ids) ids.add(id);
      found.textContent = `searching all that was said, ${Math.floor(100 * part.share)} %…`;
    }
    said = ids;
    changed();
  }

  const search = h("input", {
    id: "search",
    type: "search",
    class: "wide",
    placeholder: "Task, prompt or answer; Enter searches all that was said",
    "aria-label": "Search",
    onkeydown: (event) => event.key === "Enter" && void searchAll(),
    oninput: () => {
      forget();
      filter.q = search.value;
      changed();
    },
  });
  const choice = (name, label) => {
    const select = h("select", {
      "aria-label": label,
      onchange: () => {
        filter[name] = select.value;
        changed();
      },
    });
    return select;
  };
  const selects = { outcome: choice("outcome", "Outcome"), tool: choice("tool", "Tool") };
  const ranges = RANGES.map((name) => [0, 1].map((end) => {
    const input = h("input", {
      type: "number",
      step: name === "tokens" || name === "step" ? "1" : "any",
      "aria-label": `${NAMES[name]} ${end ? "at most" : "at least"}`,
      placeholder: end ? "max" : "min",
      oninput: () => {
        filter[name][end] = input.value;
        changed();
      },
    });
    return input;
  }));
  const clear = button("Clear", () => {
    forget();
    Object.assign(filter, filterOf(new URLSearchParams()));
    write();
    changed();
  });
  const node = h(
    "div",
    { class: "filters", role: "search" },
    search,
    selects.outcome,
    selects.tool,
    RANGES.map((name, place) =>
      h("span", { class: "range", role: "group", "aria-label": NAMES[name] }, h("span", { class: "muted" }, NAMES[name]), ranges[place]),
    ),
    found,
    clear,
  );

  function write() {
    search.value = filter.q;
    for (const [name, select] of Object.entries(selects)) select.value = filter[name];
    RANGES.forEach((name, place) => ranges[place].forEach((input, end) => {
      input.value = filter[name][end];
    }));
    clear.hidden = !Object.keys(queryOf(filter)).length;
  }

  function options(any, names, known) {
    const more = [...names, ...(known && !names.includes(known) ? [known] : [])];
    return [h("option", { value: "" }, any), more.map((name) => h("option", { value: name }, words(name)))];
  }

  return {
    node,
    /** Takes a run's outcomes and tools; a search that the address asks for begins. */
    show(newRun, isFirst) {
      run = newRun;
      const { outcomes, tools } = run.index;
      const failures = outcomes.some((name) => name.startsWith("failed_")) ? [FAILED] : [];
      fill(selects.outcome, options("Any outcome", [...failures, ...[...outcomes].sort()], filter.outcome));
      selects.outcome.querySelector(`[value="${FAILED}"]`)?.replaceChildren("any failure");
      fill(selects.tool, options("Any tool", tools, filter.tool));
      selects.tool.hidden = tools.length === 0;
      write();
      if (isFirst && filter.everything) void searchAll();
    },
    say: (text) => {
      found.textContent = text;
    },
  };
}
