/** One task in two runs: both trees, and where trajectories of the same number part. */

import { button, fill, h } from "./dom.js";
import { number, visible } from "./format.js";
import { crumbs, groupFacts, missing, reading, taskSection, watchStory } from "./group.js";
import { commonTokens, tokensOf } from "./path.js";
import { addressOf, go } from "./route.js";
import { matchTasks } from "./tables.js";
import { makeTree } from "./tree.js";

/** Makes the page of a task; `ids` are a group of each run. */
export function makePair({ runs, place }) {
  const ids = place.ids;
  const rows = ids.map(([which, id]) => runs[which]?.rowOfGroup.get(id));
  const lost = ids.find((_, side) => rows[side] === undefined);
  if (lost) return { node: h("main", { class: "page" }, missing(`group ${lost[1]}`)), keys: {}, update() {} };
  const pairs = matchTasks(runs).filter((pair) => !pair.includes(-1));
  const own = pairs.findIndex((pair) => pair[0] === rows[0] && pair[1] === rows[1]);
  const body = h("div", { class: "stack" }, reading());
  const stories = [undefined, undefined];
  let [trees, partings, current] = [[], [], -1];
  const updates = ids.map(([which], side) =>
    watchStory(runs[which], rows[side], (story) => {
      stories[side] = story;
      draw();
    }),
  );

  function sibling(by) {
    const pair = own < 0 ? undefined : pairs[own + by];
    if (pair) go(addressOf("task", pair.map((row, which) => [which, runs[which].index.groups.id[row]])));
  }

  function choose(place) {
    current = place;
    body.querySelectorAll("tbody tr").forEach((one, at) => one.classList.toggle("current", at === place));
    trees.forEach((tree, side) => tree.current(tree.lanes.findIndex((told) => told && told.id === partings[place]?.pair[side].id)));
  }

  function draw() {
    if (stories.includes(undefined)) return;
    if (stories.includes(null)) return fill(body, missing("record of both"));
    const [left, right] = stories;
    partings = left.trajectories.flatMap((one) => {
      const other = right.trajectories.find((told) => told.sample === one.sample && told.state !== "abandoned");
      if (!other || one.state === "abandoned") return [];
      const pair = [one, other];
      const tokens = pair.map((told, side) => tokensOf(runs[ids[side][0]], rows[side], stories[side], told));
      const parts = commonTokens(...tokens);
      return [{ pair, parts, token: tokens[0][parts] ?? tokens[1][parts] }];
    });
    const parts = new Map(partings.filter((one) => one.token).map((one) => [one.pair[0].sample, one.parts]));
    trees = stories.map((story, side) =>
      makeTree({
        story,
        parts,
        onCurrent: (lane) => choose(partings.findIndex((one) => one.pair[side] === trees[side].lanes[lane])),
        onOpen: (told) => go(addressOf("trajectory", [[ids[side][0], told.id]])),
      }),
    );
    const isSame = new Set(stories.map((story) => story.task)).size === 1;
    fill(
      body,
      !isSame && h("p", { class: "notice", role: "status" }, `These are different tasks: ${stories.map((story) => visible(story.task)).join(" and ")}.`),
      taskSection(left),
      h(
        "div",
        { class: "sides" },
        ids.map(([which, id], side) =>
          h(
            "section",
            { "aria-label": side ? "Second run" : "First run" },
            h("h2", {}, h("a", { href: addressOf("group", [[which, id]]), class: `run-${which}` }, `${visible(runs[which].index.run.name)}, group ${id}`)),
            groupFacts(runs[which], rows[side]),
            trees[side].node,
          ),
        ),
      ),
      h(
        "section",
        { "aria-label": "Where they part" },
        h("h2", {}, "Where they part"),
        h(
          "table",
          { class: "scores partings" },
          h("thead", {}, h("tr", {}, ["No.", "Reward", "Reward", "Token", "Turn", ""].map((name, at) => h("th", { scope: "col", class: (at === 1 || at === 2) && `run-${at - 1}` }, name)))),
          h(
            "tbody",
            {},
            partings.map(({ pair, parts: common, token }, at) =>
              h(
                "tr",
                { onpointerenter: () => choose(at) },
                h("th", { scope: "row" }, pair[0].sample),
                pair.map((told) => h("td", {}, number(told.reward))),
                h("td", {}, token ? common : "nowhere"),
                h("td", {}, token ? token.turn : ""),
                h("td", {}, h("a", { href: compareOf(at) }, "Compare")),
              ),
            ),
          ),
        ),
      ),
    );
    choose(current);
  }

  function compareOf(at) {
    return addressOf("compare", partings[at].pair.map((told, side) => [ids[side][0], told.id]));
  }

  const move = (by) => choose(Math.max(0, Math.min(partings.length - 1, current + by)));
  return {
    node: h(
      "main",
      { class: "page group" },
      crumbs(
        [h("a", { href: "#/tasks" }, "Tasks"), "one task in two runs"],
        button("Previous", () => sibling(-1), { disabled: own <= 0 }),
        button("Next", () => sibling(1), { disabled: own < 0 || own === pairs.length - 1 }),
      ),
      body,
    ),
    keys: {
      j: () => move(1),
      k: () => move(-1),
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      Enter: () => partings[current] && go(compareOf(current)),
      n: () => sibling(1),
      p: () => sibling(-1),
    },
    up: () => go("#/tasks"),
    update(newRuns) {
      runs = newRuns;
      ids.forEach(([which], side) => updates[side](runs[which]));
    },
  };
}
