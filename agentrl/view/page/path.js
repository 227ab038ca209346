/** A trajectory, token by token. */

import { at } from "./data.js";

export function pathOf(story, end) {
  const path = [];
  for (let node = end; node !== null; node = story.nodes[node]?.parent ?? null) path.push(node);
  return path.reverse();
}

/** Returns the nodes of the context at the end of a path. */
export function contextOf(story, path) {
  const before = [];
  path.forEach((id, place) => {
    const node = story.nodes[id];
    let parent = node.resumes ? node.resumes - 1 : place - 1;
    for (let left = node.withdraws ?? 0; left > 0; left--) parent = before[parent] ?? -1;
    before.push(parent);
  });
  const context = new Set();
  for (let place = path.length - 1; place >= 0; place = before[place] ?? -1) context.add(path[place]);
  return context;
}

/** Returns the trainer's version as the step of a group began, or null for a group without one. */
function trainedAt(run, row) {
  const { groups } = run.index;
  return groups.state[row] === "trained" ? groups.step[row] - 1 : null;
}

/** Returns the tokens of a trajectory with all that is known of each. */
export function tokensOf(run, row, story, told) {
  const path = pathOf(story, told.at);
  const context = contextOf(story, path);
  const trainer = trainedAt(run, row);
  const tokens = [];
  let sampled = 0;
  for (const id of path) {
    const node = story.nodes[id];
    const isSampled = node.source === "sampled";
    node.ids.forEach((token, place) => {
      const own = isSampled ? sampled++ : -1;
      const version = isSampled ? at(node.versions, place) : null;
      const logRatio = isSampled ? at(told.credit?.logRatios, own) : null;
      tokens.push({
        id: token,
        text: story.vocabulary[token] ?? `<${token}>`,
        source: node.source,
        turn: node.turn,
        isWithdrawn: !context.has(id),
        logprob: isSampled ? at(node.logprobs, place) : null,
        version,
        // Versions between the one that sampled it and the one that trained on it.
        age: version === null || trainer === null ? null : trainer - version,
        entropy: at(node.entropies, place) ?? (isSampled ? at(told.credit?.entropies, own) : null),
        advantage: isSampled ? at(told.credit?.advantages, own) : null,
        logRatio,
        isTrained: logRatio !== null,
      });
    });
  }
  return tokens;
}

/** Returns how many tokens two trajectories begin with in common; runs may differ in vocabulary. */
export function commonTokens(one, other) {
  let place = 0;
  while (place < one.length && place < other.length && one[place].id === other[place].id && one[place].text === other[place].text) place++;
  return place;
}

/** Returns how many messages two trajectories begin with in common. */
export function commonMessages(one, other) {
  const key = ({ role, text, calls, pictures }) => JSON.stringify([role, text, calls, pictures]);
  let place = 0;
  while (place < one.length && place < other.length && key(one[place]) === key(other[place])) place++;
  return place;
}

/** Returns of each turn how long policy and environment took, in seconds. */
export function turnTimes(story, told) {
  const turns = new Map();
  for (const id of pathOf(story, told.at)) {
    const node = story.nodes[id];
    if (node.source === "prompt") continue;
    const isSampled = node.source === "sampled";
    // What the world answers opens the next turn, and belongs to the one it answers.
    const turn = isSampled ? node.turn : Math.max(0, node.turn - 1);
    const time = turns.get(turn) ?? { turn, policy: 0, world: 0 };
    time[isSampled ? "policy" : "world"] += node.s;
    turns.set(turn, time);
  }
  return [...turns.values()].sort((one, other) => one.turn - other.turn);
}

/** Returns the mean advantage of a trajectory's trained tokens, or null. */
export function meanAdvantage(told) {
  const values = told.credit?.advantages;
  if (values === undefined || values === null || typeof values === "number") return values ?? null;
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
