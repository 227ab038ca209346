/** The tree of a group: tokens from left to right, one lane per trajectory. */

import { fill, h, s, watchWidth } from "./dom.js";
import { count, number, signed, visible, words } from "./format.js";
import { laneAt, layoutOf } from "./layout.js";
import { meanAdvantage } from "./path.js";

const LANE = 24;
const TOP = 26;
const LEFT = 14;
const SOURCES = ["prompt", "sampled", "tool", "template", "forced"];

/** Makes a list of what the colours of tokens mean. */
export function sourceLegend(sources = SOURCES, ...more) {
  return h("ul", { class: "legend" }, SOURCES.filter((one) => sources.includes(one)).map((one) => h("li", {}, h("i", { class: `swatch ${one}` }), one)), more);
}

/**
 * Makes a tree. `parts` says after how many tokens a trajectory, by its number in the group, parts
 * from another one. `current(lane)` marks a lane, `mark(ids)` those that are to be compared.
 */
export function makeTree({ story, onCurrent, onOpen, parts = new Map() }) {
  const layout = layoutOf(story);
  const svg = s("svg", { role: "group", "aria-label": "Tree of the group", height: TOP + layout.lanes.length * LANE + 8 });
  const note = h("div", { class: "decision-note", role: "status" }, h("p", { class: "muted" }, "Point at a ring to read why it did or did not branch."));
  const ring = (name, text) => layout.marks.length > 0 && h("li", {}, h("i", { class: name }), text);
  const node = h(
    "figure",
    { class: "tree" },
    svg,
    h(
      "figcaption",
      {},
      sourceLegend(SOURCES, ring("ring full", "branched"), ring("ring", "did not branch"), parts.size > 0 && h("li", {}, h("i", { class: "parting" }), "parts from the other run")),
      layout.marks.length > 0 && note,
    ),
  );
  let [marked, chosen] = [[], -1];

  function draw(width) {
    // On a narrow page the lanes keep the number and the reward alone.
    const isNarrow = width < 560;
    const right = isNarrow ? 110 : 290;
    const x = (tokens) => LEFT + (tokens / Math.max(1, layout.tokens)) * Math.max(80, width - LEFT - right);
    const y = (lane) => TOP + lane * LANE + LANE / 2;
    const height = TOP + layout.lanes.length * LANE + 8;
    const ticks = [...new Set((isNarrow ? [0, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) => Math.round(share * layout.tokens)))];
    const columns = [36, 96, ...(isNarrow ? [] : [170, 188])].map((place) => width - right + place);
    const row = (texts, top, classes) => columns.map((place, at) => s("text", { x: place, y: top, "text-anchor": at < 3 && "end", class: classes[at] }, texts[at]));
    svg.setAttribute("width", width);
    fill(
      svg,
      ticks.map((tick, place) => [
        s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP - 4, y2: height - 6 }),
        s("text", { class: "tick", x: x(tick), y: 14, "text-anchor": place === 0 ? "start" : place === ticks.length - 1 ? "end" : "middle" }, place === ticks.length - 1 ? count(tick, "token") : tick),
      ]),
      layout.lanes.map((told, lane) => s("rect", { class: "lane", x: 0, y: y(lane) - LANE / 2, width, height: LANE, onclick: () => told && onOpen(told), onpointerenter: () => onCurrent(lane) })),
      layout.forks.map((fork) => s("path", { class: "fork", d: `M ${x(fork.at)} ${y(fork.lane)} V ${y(fork.below) - 6} q 0 6 6 6 H ${x(fork.at) + 8}` })),
      layout.segments.map((one) =>
        s("line", { class: `segment ${one.source}`, x1: x(one.from) + 0.5, x2: Math.max(x(one.to) - 0.5, x(one.from) + 1.5), y1: y(one.lane), y2: y(one.lane) }),
      ),
      layout.marks.map(({ decision, lane }) => {
        const hasBranched = decision.reason === "branched";
        const tell = () => fill(note, decisionFacts(decision));
        return s(
          "circle",
          {
            class: `decision ${hasBranched ? "branched" : ""}`,
            cx: x(decision.at),
            cy: y(lane),
            r: hasBranched ? 5 : 3.5,
            tabindex: 0,
            role: "img",
            "aria-label": decision.said,
            onpointerenter: tell,
            onfocus: tell,
          },
          s("title", {}, decision.said),
        );
      }),
      layout.lanes.map((told) => {
        const place = told && parts.get(told.sample);
        if (place === null || place === undefined) return null;
        const [at, top] = [x(place), y(laneAt(layout, story, told, place + 1)) - LANE / 2];
        return s("path", { class: "parting", d: `M ${at} ${top + 8} l -4.5 -7 h 9 Z` }, s("title", {}, `trajectory ${told.sample} parts at token ${place}`));
      }),
      layout.lanes.map(
        (told, lane) =>
          told &&
          s(
            "g",
            {
              class: "leaf",
              role: "link",
              tabindex: 0,
              "aria-label": `trajectory ${told.sample}, ${words(told.outcome)}, reward ${number(told.reward)}`,
              onclick: () => onOpen(told),
              onfocus: () => onCurrent(lane),
              onkeydown: (event) => event.key === "Enter" && onOpen(told),
            },
            row(
              [`${marked.includes(told.id) ? "◆ " : ""}${told.sample}`, number(told.reward), signed(meanAdvantage(told)), words(told.outcome)],
              y(lane) + 4,
              ["sample", told.outcome.startsWith("failed") && isNarrow && "bad", "muted", told.outcome.startsWith("failed") ? "bad" : "muted"],
            ),
          ),
      ),
      s("g", { class: "tick", "aria-hidden": "true" }, row(["no.", "reward", "advantage", "outcome"], 14, [])),
    );
    current(chosen);
  }

  function current(lane) {
    chosen = lane;
    svg.querySelectorAll(".lane").forEach((one, place) => one.classList.toggle("current", place === lane));
  }

  watchWidth(node, draw);
  return {
    node,
    lanes: layout.lanes,
    current,
    mark(ids) {
      marked = ids;
      if (node.clientWidth) draw(node.clientWidth);
    },
  };
}

function decisionFacts(decision) {
  const facts = [
    ["signal", number(decision.signal, 4)],
    decision.bounds && ["entropy", `${number(decision.bounds[0])} to ${number(decision.bounds[1])} nats`],
    ["rise", signed(decision.rise, 4)],
    ["chance", number(decision.chance)],
    ["draw", decision.draws.map((draw) => number(draw)).join(", ") || "–"],
    ["in a row", String(decision.streak)],
    ["budget left", String(decision.open)],
  ];
  return [h("p", {}, `${visible(decision.said)}.`), h("dl", {}, facts.map((one) => one && h("div", {}, h("dt", {}, one[0]), h("dd", {}, one[1]))))];
}
