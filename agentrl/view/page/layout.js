/** Where the parts of a group's tree are drawn: one lane per trajectory, a branch below its parent. */

import { pathOf } from "./path.js";

/**
 * Returns `{ lanes, segments, forks, marks, tokens }`: of each lane its trajectory; of each node its
 * lane and its first and last token; where lanes begin; where it was decided; the longest path.
 */
export function layoutOf(story) {
  const told = story.trajectories.filter((one) => one.state !== "abandoned" && one.at !== null);
  const children = new Map();
  const used = new Set();
  const ends = new Map();
  const add = (map, key, value) => map.set(key, [...(map.get(key) ?? []), value]);
  for (const one of told) {
    add(ends, one.at, one);
    for (const node of pathOf(story, one.at)) {
      if (used.has(node)) continue;
      used.add(node);
      add(children, story.nodes[node].parent, node);
    }
  }
  const layout = { lanes: [], segments: [], forks: [], marks: [], tokens: 0 };
  const { lanes, segments, forks } = layout;
  // A stack and no recursion: a path may have thousands of nodes. The first child keeps the lane.
  const stack = [];
  const push = (nodes, from, lane, left) => {
    for (let place = nodes.length - 1; place >= 0; place--) stack.push({ node: nodes[place], from, lane: place ? null : lane, left });
  };
  push(children.get(null) ?? [], 0, null, -1);
  while (stack.length) {
    let { node, from, lane, left } = stack.pop();
    const to = from + story.nodes[node].ids.length;
    if (lane === null) {
      lane = lanes.push(null) - 1;
      if (left >= 0) forks.push({ lane: left, below: lane, at: from });
    }
    segments.push({ node, source: story.nodes[node].source, lane, from, to });
    layout.tokens = Math.max(layout.tokens, to);
    const below = children.get(node) ?? [];
    for (const one of ends.get(node) ?? []) {
      // Where others go on from its end, it has its lane to itself all the same.
      if (lanes[lane] || below.length) forks.push({ lane, below: lanes.push(one) - 1, at: to });
      else lanes[lane] = one;
    }
    push(below, to, lanes[lane] ? null : lane, lane);
  }
  for (const decision of story.decisions) {
    const lane = lanes.findIndex((one) => one?.sample === decision.sample);
    if (lane < 0 || decision.reason === "opening") continue;
    // Before its own first token the decision is about a context that it shares.
    layout.marks.push({ decision, lane: laneAt(layout, story, lanes[lane], decision.at) });
  }
  return layout;
}

/** Returns the lane in which a place of a trajectory, counted in tokens, is drawn. */
export function laneAt({ segments }, story, told, place) {
  const path = new Set(pathOf(story, told.at));
  const own = segments.filter((one) => path.has(one.node));
  return (own.find((one) => one.from < place && place <= one.to) ?? own[0])?.lane ?? 0;
}
