/** One group: its task, and the tree of its trajectories. */

import { rewardsOf, storyOf } from "./data.js";
import { button, definitions, fill, h } from "./dom.js";
import { count, mean, number, spread, visible, whole } from "./format.js";
import { addressOf, go } from "./route.js";
import { pictures, textBlock } from "./said.js";
import { makeTree } from "./tree.js";

/**
 * Calls `draw(story)` with a group's story, `null` where there is none, and again when the run has
 * gone on so that there may be another. Returns what is to be called with each newer run.
 */
export function watchStory(run, row, draw) {
  let [seen, latest] = [undefined, 0];
  const update = (newer) => {
    const state = newer.index.groups.state[row];
    const version = newer.isServed && state === "open" ? newer : state;
    if (version === seen) return;
    seen = version;
    const mine = ++latest;
    const take = (story) => mine === latest && draw(story);
    storyOf(newer, row).then(take, () => take(null));
  };
  update(run);
  return update;
}

/** Makes what a group says of itself before its story is there. */
export function groupFacts(run, row) {
  const { groups } = run.index;
  const rewards = rewardsOf(run, row);
  return definitions("facts", [
    ["Step", whole(groups.step[row])],
    ["State", groups.state[row]],
    ["Trajectories", whole(groups.size[row])],
    ["Mean reward", number(mean(rewards))],
    ["Spread", number(spread(rewards))],
    ["Task", h("span", { class: "mono" }, visible(groups.task[row]))],
  ]);
}

export function taskSection(story) {
  return h(
    "section",
    { class: "task", "aria-label": "Task" },
    story.prompt.map((message) => h("div", {}, textBlock(message.text), pictures(message.pictures, story))),
    story.answer && h("p", { class: "muted" }, "Answer: ", h("span", { class: "mono" }, visible(story.answer))),
    story.tags.length > 0 && h("p", { class: "muted" }, `Tags: ${visible(story.tags.join(", "))}`),
  );
}

export function crumbs(parts, ...steps) {
  return h("nav", { class: "crumbs", "aria-label": "Where this is" }, parts.map((part) => (typeof part === "string" ? h("span", {}, part) : part)), h("span", { class: "steps" }, steps));
}

export function missing(what) {
  return h("p", { class: "notice" }, `There is no ${what} on this page. `, h("a", { href: "#/groups" }, "All groups"));
}

export function reading() {
  return h("p", { class: "muted", role: "status" }, "Reading…");
}

/** Makes the page of a group. */
export function makeGroup({ runs, place, marks }) {
  const [which, id] = place.ids[0];
  let run = runs[which];
  const row = run?.rowOfGroup.get(id);
  if (row === undefined) return { node: h("main", { class: "page" }, missing(`group ${id}`)), keys: {}, update() {} };
  let [tree, lane] = [null, -1];
  const head = h("div");
  const body = h("div", { class: "stack" }, reading());
  const addressOfTold = (told) => addressOf("trajectory", [[which, told.id]]);
  const sibling = (by) => {
    const next = run.index.groups.id[row + by];
    if (next !== undefined) go(addressOf("group", [[which, next]]));
  };
  const setLane = (chosen) => {
    lane = chosen;
    tree?.current(chosen);
  };
  const move = (by) => tree && setLane(Math.max(0, Math.min(tree.lanes.length - 1, lane + by)));
  const ofLane = (act) => () => tree?.lanes[lane] && act(tree.lanes[lane]);

  function drawHead() {
    const { groups } = run.index;
    fill(
      head,
      crumbs(
        [h("a", { href: addressOf("groups", [], which ? { run: 1 } : {}) }, "Groups"), `step ${groups.step[row]}`, `group ${id}`],
        button("Previous", () => sibling(-1), { disabled: row === 0 }),
        button("Next", () => sibling(1), { disabled: row === groups.id.length - 1 }),
      ),
      groupFacts(run, row),
      groups.why[row] && h("p", { class: "notice" }, visible(groups.why[row])),
    );
  }

  function drawStory(story) {
    if (story === null) return fill(body, h("p", { class: "notice" }, "The trajectories of this group are not here."));
    tree = makeTree({ story, onCurrent: setLane, onOpen: (told) => go(addressOfTold(told)) });
    tree.mark(marks.idsOf(which));
    tree.current(lane);
    const gone = story.trajectories.filter((one) => one.state === "abandoned");
    fill(
      body,
      taskSection(story),
      tree.node,
      gone.length > 0 &&
        h(
          "details",
          {},
          h("summary", {}, "Given up ", h("span", { class: "muted" }, gone.length)),
          h("ul", {}, gone.map((one) => h("li", {}, h("a", { href: addressOfTold(one) }, `sample ${one.sample}`), `, ${count(one.messages.length, "message")}: ${visible(one.error)}`))),
        ),
    );
  }

  drawHead();
  const updateStory = watchStory(run, row, drawStory);
  return {
    node: h("main", { class: "page group" }, head, body),
    keys: {
      j: () => move(1),
      k: () => move(-1),
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      Enter: ofLane((told) => go(addressOfTold(told))),
      m: ofLane((told) => {
        marks.toggle(which, told.id);
        tree.mark(marks.idsOf(which));
      }),
      c: marks.compare,
      n: () => sibling(1),
      p: () => sibling(-1),
    },
    up: () => go(addressOf("groups", [], which ? { run: 1 } : {})),
    update(newRuns) {
      run = newRuns[which];
      drawHead();
      updateStory(run);
    },
  };
}
