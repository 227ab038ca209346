/** A run as a whole, or two laid over each other: what it is, how it went, every figure. */

import { rewardsOf } from "./data.js";
import { makeChart } from "./chart.js";
import { definitions, fill, h } from "./dom.js";
import { count, endsOf, interval, mean, number, seconds, visible, whole, words } from "./format.js";
import { faultNotice, makeLive } from "./live.js";

const HEADLINES = {
  "seconds/rollout": "Waiting for groups, s",
  "seconds/learn": "Training and loading, s",
  tokens_per_s: "Trained tokens/s",
  entropy: "Entropy, nats",
  "age/mean": "Age of trained tokens, versions",
  "lengths/context_mean": "Tokens per trajectory",
};

function lineOf(run, name) {
  const { [name]: values, step: steps } = run.index.metrics;
  if (!values?.some((value) => value !== null)) return null;
  return { steps, values };
}

function linesOf(runs, name) {
  const lines = runs.map((run) => lineOf(run, name));
  return lines.some((line) => line !== null) ? lines : null;
}

/** Returns the mean reward of each step over its groups, with an interval over the groups. */
function rewardLine(run) {
  const { groups } = run.index;
  const means = new Map();
  groups.step.forEach((step, row) => {
    if (groups.state[row] !== "trained") return;
    const own = mean(rewardsOf(run, row));
    if (own === null) return;
    if (means.has(step)) means.get(step).push(own);
    else means.set(step, [own]);
  });
  if (!means.size) return lineOf(run, "reward/mean");
  const steps = [...means.keys()].sort((one, other) => one - other);
  const found = steps.map((step) => interval(means.get(step)));
  // Intervals end where rewards do: at 0 and 1, or at the least and largest mean beyond them.
  const bounds = endsOf([0, 1, ...[...means.values()].flat()]);
  return { steps, values: found.map((one) => one.mean), halves: found.map((one) => one.half), bounds };
}

/** Makes the overview; figures that were open or sought stay so when the run goes on. */
export function makeOverview({ runs, place: { lost } }) {
  const node = h("main", { class: "page overview" });
  const live = runs[0].isServed ? runs.map(makeLive) : [];
  const search = h("input", { type: "search", placeholder: "Filter figures", "aria-label": "Filter figures", oninput: () => drawFamilies() });
  const families = h("div");
  const opened = new Set();
  let shown = runs;

  function drawFamilies() {
    const sought = search.value.trim();
    fill(
      families,
      familiesOf(shown, sought).map(([family, names]) => {
        const figures = h("div", { class: "multiples" });
        const drawOnce = () => {
          if (!figures.childElementCount) fill(figures, names.map((name) => makeChart({ name, lines: linesOf(shown, name) })));
        };
        const isOpen = sought !== "" || opened.has(family);
        if (isOpen) drawOnce();
        const ontoggle = (event) => {
          if (event.target.open) drawOnce();
          if (sought === "") opened[event.target.open ? "add" : "delete"](family);
        };
        return h("details", { open: isOpen, ontoggle }, h("summary", {}, family, " ", h("span", { class: "muted" }, names.length)), figures);
      }),
    );
  }

  function draw() {
    const isTwo = shown.length === 2;
    const reward = shown.map(rewardLine);
    const isEvaluation = shown.every((run) => run.index.run.evaluation);
    fill(
      node,
      h("header", { class: "title" }, shown.map(({ index }, place) => h("div", {}, h("h1", { class: isTwo && `run-${place}` }, visible(index.run.name)), h("p", { class: "muted" }, visible(index.run.env))))),
      lost && h("p", { class: "notice", role: "status" }, `Nothing on this page has the address ${visible(lost)}; this is the overview.`),
      live,
      shown.map((run, place) => definitions(`facts ${isTwo ? `run-${place}` : ""}`, runFacts(run))),
      shown.map(({ index }) => [
        index.leftOut.length > 0 && h("p", { class: "notice", role: "note" }, `Not on this page${isTwo ? ` of ${visible(index.run.name)}` : ""}: ${index.leftOut.join("; ")}.`),
        faultNotice(index.run.faults, isTwo ? ` of ${visible(index.run.name)}` : ""),
        !index.run.hasTokenizer && h("p", { class: "notice", role: "note" }, `The folder of ${visible(index.run.name)} has no tokenizer, so tokens are shown as numbers.`),
        index.run.evaluation && scores(index.run.evaluation),
      ]),
      !isEvaluation &&
        h(
          "section",
          { class: "headlines", "aria-label": "Main figures" },
          reward.some((line) => line !== null) &&
            makeChart({ name: "Reward", lines: reward, height: 356, note: "Mean over the step's groups on this page; the band is a 95 % interval over groups" }),
          h(
            "div",
            { class: "small-multiples" },
            Object.entries(HEADLINES).map(([name, title]) => {
              const lines = linesOf(shown, name);
              return lines && makeChart({ name: title, lines, note: name, height: 96 });
            }),
          ),
        ),
      familiesOf(shown, "").length > 0 &&
        h("section", { "aria-label": "All figures" }, h("div", { class: "section-head" }, h("h2", {}, "All figures"), search), families),
      isTwo && differences(shown),
      shown.map(({ index }) => configs(index.run, isTwo)),
    );
    drawFamilies();
  }

  draw();
  return {
    node,
    keys: {},
    update(newRuns) {
      shown = newRuns;
      const open = [...node.querySelectorAll("details.config")].map((one) => one.open);
      draw();
      node.querySelectorAll("details.config").forEach((one, place) => {
        one.open = open[place] ?? false;
      });
    },
  };
}

function configs(run, isTwo) {
  const of = isTwo ? ` of ${visible(run.name)}` : "";
  return h(
    "section",
    { "aria-label": `Config${of}` },
    h("details", { class: "config" }, h("summary", {}, `Config${of}`), h("pre", { class: "text" }, visible(run.config))),
    run.sessions &&
      h(
        "details",
        { class: "config" },
        h("summary", {}, `Started${isTwo ? `, ${visible(run.name)}` : ""} `, h("span", { class: "muted" }, count(run.sessions.length, "time"))),
        h("pre", { class: "text" }, visible(JSON.stringify(run.sessions, null, 2))),
      ),
  );
}

/** The settings in which two runs differ. */
function differences(runs) {
  const [one, other] = runs.map((run) => run.index.run.settings);
  const keys = [...new Set([...Object.keys(one), ...Object.keys(other)])].sort();
  const differing = keys.filter((key) => one[key] !== other[key]);
  const cell = (value) => h("td", { class: "mono" }, value === undefined ? h("span", { class: "muted" }, "not set") : visible(value));
  return h(
    "section",
    { "aria-label": "Differences" },
    h("h2", {}, differing.length ? "Settings that differ" : "All settings are the same"),
    differing.length > 0 &&
      h(
        "table",
        { class: "scores differences" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), runs.map((run, place) => h("th", { scope: "col", class: `run-${place}` }, visible(run.index.run.name))))),
        h("tbody", {}, differing.map((key) => h("tr", {}, h("th", { scope: "row" }, visible(key)), cell(one[key]), cell(other[key])))),
      ),
  );
}

/** Scores of an evaluation: all tasks first, then family by family. */
function scores(evaluation) {
  const rows = [["all tasks", evaluation.overall], ...Object.entries(evaluation.families)];
  const heads = ["Held-out tasks", "pass@1", evaluation.confidence === null ? "Interval" : `${whole(100 * evaluation.confidence)} % interval`, "Mean reward", "Tasks"];
  return h(
    "section",
    { "aria-label": "Scores" },
    h(
      "table",
      { class: "scores" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h(
        "tbody",
        {},
        rows.map(([family, own]) => {
          const [pass, reward] = [own["pass@1"], own["reward"]];
          return h(
            "tr",
            {},
            h("th", { scope: "row" }, visible(family)),
            h("td", {}, pass ? number(pass.mean) : "unknown"),
            h("td", {}, pass ? `${number(pass.low)} to ${number(pass.high)}` : "every trajectory failed"),
            h("td", {}, reward ? number(reward.mean) : "unknown"),
            h("td", {}, whole(pass?.tasks ?? 0)),
          );
        }),
      ),
    ),
  );
}

function runFacts(run) {
  const { groups, trajectories, outcomes, metrics } = run.index;
  const { evaluation, steps: allSteps, summary } = run.index.run;
  const ends = new Map();
  for (const outcome of trajectories.outcome) ends.set(outcome, (ends.get(outcome) ?? 0) + 1);
  const failed = [...ends].filter(([outcome]) => outcomes[outcome].startsWith("failed"));
  const steps = metrics["step"]?.length ?? new Set(groups.step).size;
  const facts = evaluation
    ? [["Tasks", whole(groups.id.length)]]
    : [
        ["Steps", allSteps === null ? whole(steps) : `${whole(steps)} of ${whole(allSteps)}`],
        ["Groups", whole(groups.id.length)],
      ];
  facts.push(["Trajectories", whole(trajectories.id.length)]);
  const failures = failed.map(([outcome, times]) => `${whole(times)} ${words(outcomes[outcome].replace("failed_", ""))}`);
  facts.push(["Failed", failures.join(", ") || "none"]);
  const times = (metrics["time"] ?? []).filter((time) => time !== null);
  if (times.length > 1) facts.push(["First to last step", seconds(times[times.length - 1] - times[0])]);
  for (const when of ["before", "after"]) {
    const found = summary?.[when] ?? {};
    if (typeof found["pass@1"] !== "number") continue;
    const bounds = Object.entries(found).find(([name]) => /^ci\d/.test(name))?.[1];
    const between = Array.isArray(bounds) ? ` (${number(bounds[0], 2)} to ${number(bounds[1], 2)})` : "";
    facts.push([`Held-out pass@1 ${when}`, `${number(found["pass@1"], 2)}${between}`]);
  }
  return facts;
}

function familiesOf(runs, sought) {
  const families = new Map();
  for (const name of [...new Set(runs.flatMap((run) => Object.keys(run.index.metrics)))].sort()) {
    if (name === "step" || name === "time" || !name.includes(sought) || !linesOf(runs, name)) continue;
    const family = name.includes("/") ? name.slice(0, name.indexOf("/")) : "loop";
    families.set(family, [...(families.get(family) ?? []), name]);
  }
  return [...families].sort(([one], [other]) => one.localeCompare(other));
}
