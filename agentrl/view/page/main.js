/** The page: what is open, and the bar above it. */

import { makeCompare } from "./compare.js";
import { embeddedIndex, runOf, servedIndex } from "./data.js";
import { button, fill, h } from "./dom.js";
import { visible } from "./format.js";
import { makeGroup } from "./group.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { makeOverview } from "./overview.js";
import { makePair } from "./pair.js";
import { addressOf, go, placeOf } from "./route.js";
import { makeTable, makeTasks } from "./tables.js";
import { makeTrajectory } from "./trajectory.js";

const POLL_MS = 2000;
/** Of each view, what makes it: `{ node, keys, update(runs), up() }`. */
const VIEWS = {
  overview: makeOverview,
  groups: makeTable,
  trajectories: makeTable,
  tasks: makeTasks,
  group: makeGroup,
  trajectory: makeTrajectory,
  compare: makeCompare,
  task: makePair,
};
/** The tab that is lit in a view that has none of its own. */
const TAB_OF = { group: "groups", trajectory: "trajectories", compare: "groups", task: "tasks" };

/** Makes the choice of the theme: the system's, until one is chosen. */
function makeTheme(onChange) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const current = () => chosen ?? (system.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const apply = () => {
    document.documentElement.dataset["theme"] = current();
    onChange();
  };
  system.addEventListener("change", apply);
  // Paper is light.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset["theme"] = "light";
  });
  addEventListener("afterprint", apply);
  return {
    apply,
    other,
    turn() {
      chosen = other();
      apply();
    },
  };
}

/** Draws the page, and what the address names; `update(runs)` and `say(text)` come from the server. */
function makePage(root, first) {
  let runs = first;
  let place = placeOf(location.hash);
  let view = null;
  const look = { isTokens: false, colour: "source" };
  /** What each table was last asked, so that a way back leads to it. */
  const asked = {};
  const help = makeHelp();
  const bar = h("header", { class: "bar" });
  const status = h("span", { class: "muted live", role: "status" }, "live");
  const theme = makeTheme(() => drawBar());
  let marked = [];
  const isMarked = (which, id) => marked.some((one) => one[0] === which && one[1] === id);
  const marks = {
    idsOf: (which) => marked.filter((one) => one[0] === which).map((one) => one[1]),
    toggle(which, id) {
      marked = isMarked(which, id) ? marked.filter((one) => one[0] !== which || one[1] !== id) : [...marked, [which, id]].slice(-2);
      drawBar();
    },
    compare: () => marked.length === 2 && go(addressOf("compare", marked)),
  };
  const tabs = ["overview", "groups", "trajectories", ...(runs.length === 2 ? ["tasks"] : [])];
  const tabAddress = (tab, which = place.run) => {
    const query = { ...asked[tab] };
    if (which) query.run = 1;
    else delete query.run;
    return addressOf(tab, [], tab === "overview" || tab === "tasks" ? asked[tab] : query);
  };

  function drawBar() {
    const isOfTwo = place.view === "compare" && place.ids[0][0] !== place.ids[1][0];
    const lit = isOfTwo ? "tasks" : (TAB_OF[place.view] ?? place.view);
    const isOfOne = ["groups", "trajectories"].includes(lit);
    fill(
      bar,
      h("a", { class: "brand", href: "#/overview" }, runs.map((run, which) => [which > 0 && " and ", h("span", { class: runs.length > 1 && `run-${which}` }, visible(run.index.run.name))])),
      h(
        "nav",
        { "aria-label": "Views" },
        tabs.map((tab) => h("a", { href: tabAddress(tab), "aria-current": tab === lit && "page" }, tab[0].toUpperCase() + tab.slice(1))),
        runs.length === 2 &&
          isOfOne &&
          h(
            "span",
            { class: "segmented", role: "group", "aria-label": "Run" },
            runs.map((run, which) => h("button", { type: "button", "aria-pressed": String(place.run === which), onclick: () => go(tabAddress(lit, which)) }, visible(run.index.run.name))),
          ),
        marked.length > 0 && button(`Compare ${marked.length} of 2`, marks.compare, { disabled: marked.length < 2 }),
      ),
      h(
        "span",
        { class: "right" },
        runs[0].isServed && status,
        button(theme.other() === "dark" ? "Dark" : "Light", theme.turn, { "aria-label": `Use the ${theme.other()} theme` }),
        button("?", () => help.showModal(), { "aria-label": "Keys" }),
      ),
    );
  }

  function open() {
    place = placeOf(location.hash);
    if (place.run >= runs.length || (runs.length < 2 && ["tasks", "task"].includes(place.view))) place = { ...placeOf(""), lost: location.hash };
    const onAddress = (query) => {
      asked[place.view] = query;
    };
    view = VIEWS[place.view]({ runs, place, marks, look, onAddress });
    view.node.tabIndex = -1;
    drawBar();
    root.querySelector("main")?.remove();
    bar.after(view.node);
    scrollTo(0, 0);
  }

  fill(
    root,
    h(
      "a",
      {
        class: "skip",
        href: "#view",
        onclick: (event) => {
          event.preventDefault();
          view.node.focus();
        },
      },
      "Skip to the content",
    ),
    bar,
    help,
  );
  const up = () => (view.up ? view.up() : go("#/overview"));
  listenToKeys(() => [
    view.keys,
    {
      ...Object.fromEntries(tabs.map((tab, place) => [String(place + 1), () => go(tabAddress(tab))])),
      "/": () => {
        if (!document.getElementById("search")) {
          addEventListener("hashchange", () => setTimeout(() => document.getElementById("search")?.focus()), { once: true });
          go(tabAddress("trajectories"));
        } else document.getElementById("search").focus();
      },
      "?": () => help.showModal(),
      d: theme.turn,
      Escape: up,
      u: up,
    },
  ]);
  addEventListener("hashchange", () => {
    open();
    // Where the link stood is gone; who reads by ear or by keys goes on where the new view begins.
    view.node.focus({ preventScroll: true });
  });
  theme.apply();
  open();
  return {
    update(newer) {
      runs = newer;
      view.update(runs);
      drawBar();
    },
    say: (text) => {
      status.textContent = text;
    },
  };
}

/** Takes in what is new in served runs, until the page is closed. */
function follow(page, runs) {
  const poll = async () => {
    const answers = await Promise.allSettled(runs.map((run) => servedIndex(run.number)));
    const indexes = answers.map((answer) => answer.value ?? null);
    let failure = answers.find((answer) => answer.status === "rejected")?.reason;
    try {
      // Another run in its place: the address is read anew, and nothing of the old one stays.
      if (indexes.some((index, which) => index && index.run.openings !== runs[which].index.run.openings)) return location.reload();
      if (indexes.some((index) => index !== null)) {
        runs = runs.map((run, which) => (indexes[which] ? runOf(indexes[which], which, true) : run));
        page.update(runs);
      }
    } catch (error) {
      failure = error;
    }
    // The browser's own error says that nobody answers; the server's says what is wrong.
    page.say(failure === undefined ? "live" : failure instanceof TypeError ? "the server is gone" : failure.message);
    setTimeout(poll, POLL_MS);
  };
  setTimeout(poll, POLL_MS);
}

async function begin({ runs: size, isServed }) {
  const root = document.getElementById("app");
  try {
    const read = isServed ? servedIndex : embeddedIndex;
    const indexes = await Promise.all(Array.from({ length: size }, (_, which) => read(which)));
    const runs = indexes.map((index, which) => runOf(index, which, isServed));
    const page = makePage(root, runs);
    if (isServed) follow(page, runs);
  } catch (error) {
    fill(root, h("p", { class: "notice page" }, `This run cannot be shown: ${error instanceof Error ? error.message : error}`));
    throw error;
  }
}

/** Called by the page once the tables have been read, before the stories are. */
Object.assign(window, { agentrlBegin: begin });
