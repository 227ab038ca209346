/** A trajectory, token by token. */

import { at, type Source, type Story, type Told } from "./data";

export interface Token {
  id: number;
  text: string;
  source: Source;
  turn: number;
  node: number;
  /** It is not in the context at the end. */
  withdrawn: boolean;
  logprob: number | null;
  version: number | null;
  /** Versions between the one that sampled it and the one that trained on it. */
  age: number | null;
  entropy: number | null;
  advantage: number | null;
  logRatio: number | null;
  trained: boolean;
}

export function pathOf(story: Story, end: number | null): number[] {
  const path: number[] = [];
  for (let node = end; node !== null; node = story.nodes[node]?.parent ?? null) path.push(node);
  return path.reverse();
}

/** Returns the nodes of the context at the end of a path. */
export function contextOf(story: Story, path: number[]): Set<number> {
  const before: number[] = [];
  path.forEach((id, place) => {
    const node = story.nodes[id];
    let parent = node?.resumes ? node.resumes - 1 : place - 1;
    for (let count = node?.withdraws ?? 0; count > 0; count--) parent = before[parent] ?? -1;
    before.push(parent);
  });
  const context = new Set<number>();
  for (let place = path.length - 1; place >= 0; place = before[place] ?? -1) {
    context.add(path[place] ?? -1);
  }
  return context;
}

/** `trainedAt` is the trainer's version as the step began, or null for a group without one. */
export function tokensOf(story: Story, told: Told, trainedAt: number | null): Token[] {
  const path = pathOf(story, told.at);
  const context = contextOf(story, path);
  const tokens: Token[] = [];
  let sampled = 0;
  for (const id of path) {
    const node = story.nodes[id];
    if (!node) continue;
    node.ids.forEach((token, place) => {
      const own = node.source === "sampled" ? sampled++ : -1;
      const version = own < 0 ? null : at(node.versions, place);
      const logRatio = own < 0 ? null : at(told.credit?.logRatios, own);
      tokens.push({
        id: token,
        text: story.vocabulary[token] ?? `<${token}>`,
        source: node.source,
        turn: node.turn,
        node: id,
        withdrawn: !context.has(id),
        logprob: own < 0 ? null : at(node.logprobs, place),
        version,
        age: version === null || trainedAt === null ? null : trainedAt - version,
        entropy:
          at(node.entropies, place) ?? (own < 0 ? null : at(told.credit?.entropies, own)),
        advantage: own < 0 ? null : at(told.credit?.advantages, own),
        logRatio,
        trained: logRatio !== null,
      });
    });
  }
  return tokens;
}

/** Returns how many tokens two trajectories begin with in common. */
export function commonTokens(one: Token[], other: Token[]): number {
  let count = 0;
  while (count < one.length && count < other.length && one[count]?.id === other[count]?.id) count++;
  return count;
}

export interface TurnTime {
  turn: number;
  policy: number;
  world: number;
  tokens: number;
  reply: number;
}

export function turnTimes(story: Story, told: Told): TurnTime[] {
  const turns = new Map<number, TurnTime>();
  for (const id of pathOf(story, told.at)) {
    const node = story.nodes[id];
    if (!node || node.source === "prompt") continue;
    // What the world answers opens the next turn, and belongs to the one it answers.
    const number = node.source === "sampled" ? node.turn : Math.max(0, node.turn - 1);
    const time = turns.get(number) ?? { turn: number, policy: 0, world: 0, tokens: 0, reply: 0 };
    if (node.source === "sampled") {
      time.policy += node.s;
      time.tokens += node.ids.length;
    } else {
      time.world += node.s;
      time.reply += node.ids.length;
    }
    turns.set(number, time);
  }
  return [...turns.values()].sort((one, other) => one.turn - other.turn);
}
