/** Where the parts of a group's tree are drawn: one lane per trajectory, a branch below its parent. */

import type { Decision, Source, Story, Told } from "./data";
import { pathOf } from "./path";

export interface Segment {
  node: number;
  source: Source;
  lane: number;
  from: number;
  to: number;
}

export interface Fork {
  /** The lane that is left, and the one that begins. */
  lane: number;
  below: number;
  at: number;
}

export interface Mark {
  decision: Decision;
  lane: number;
}

export interface Layout {
  lanes: Told[];
  segments: Segment[];
  forks: Fork[];
  marks: Mark[];
  /** Tokens of the longest path. */
  tokens: number;
}

export function layoutOf(story: Story): Layout {
  const told = story.trajectories.filter((one) => one.state !== "abandoned" && one.at !== null);
  const children = new Map<number | null, number[]>();
  const used = new Set<number>();
  const starts = new Map<number, number>();
  for (const one of told) {
    for (const node of pathOf(story, one.at)) {
      if (used.has(node)) continue;
      used.add(node);
      const parent = story.nodes[node]?.parent ?? null;
      children.set(parent, [...(children.get(parent) ?? []), node]);
    }
  }
  const ends = new Map<number, Told[]>();
  for (const one of told) ends.set(one.at ?? -1, [...(ends.get(one.at ?? -1) ?? []), one]);

  const found: Layout = { lanes: [], segments: [], forks: [], marks: [], tokens: 0 };
  const laneOf = new Map<number, number>();
  // A stack and no recursion: a path may have thousands of nodes.
  const stack: { node: number; lane: number | null; left: number }[] = [];
  const push = (nodes: number[], lane: number | null, left: number) => {
    [...nodes].reverse().forEach((node, place) => {
      const isFirst = place === nodes.length - 1;
      stack.push({ node, lane: isFirst ? lane : null, left });
    });
  };
  push(children.get(null) ?? [], null, -1);
  while (stack.length) {
    const next = stack.pop();
    if (!next) break;
    const node = story.nodes[next.node];
    if (!node) continue;
    const from = starts.get(next.node) ?? 0;
    const to = from + node.ids.length;
    let lane = next.lane;
    if (lane === null) {
      lane = found.lanes.length;
      found.lanes.push(null as unknown as Told);
      if (next.left >= 0) found.forks.push({ lane: next.left, below: lane, at: from });
    }
    laneOf.set(next.node, lane);
    found.segments.push({ node: next.node, source: node.source, lane, from, to });
    found.tokens = Math.max(found.tokens, to);
    const below = children.get(next.node) ?? [];
    for (const child of below) starts.set(child, to);
    for (const one of ends.get(next.node) ?? []) {
      // Where others go on from its end, it has its lane to itself all the same.
      if (found.lanes[lane] || below.length) {
        const own = found.lanes.length;
        found.lanes.push(one);
        found.forks.push({ lane, below: own, at: to });
      } else found.lanes[lane] = one;
    }
    push(below, found.lanes[lane] ? null : lane, lane);
  }
  const lanes = new Map(found.lanes.map((one, lane) => [one?.sample, lane]));
  for (const decision of story.decisions) {
    const lane = lanes.get(decision.sample);
    if (lane === undefined || decision.reason === "opening") continue;
    const one = found.lanes[lane];
    // Before its own first token the decision is about a context that it shares.
    const on = one ? laneAt(found, story, one, decision.at) : lane;
    found.marks.push({ decision, lane: on });
  }
  return found;
}

function laneAt(layout: Layout, story: Story, told: Told, at: number): number {
  const path = new Set(pathOf(story, told.at));
  const under = layout.segments.filter((one) => path.has(one.node) && one.from < at && at <= one.to);
  return under[0]?.lane ?? 0;
}
