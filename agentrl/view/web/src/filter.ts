/** Which trajectories the reader wants to see. */

import type { Run } from "./data";

export interface Filter {
  text: string;
  outcome: string;
  tool: string;
  rewardFrom: string;
  rewardTo: string;
  tokensFrom: string;
  tokensTo: string;
  stepFrom: string;
  stepTo: string;
  /** Ids of trajectories in which `text` was said, after a search of everything. */
  said: ReadonlySet<number> | null;
}

export const ALL: Filter = {
  text: "",
  outcome: "",
  tool: "",
  rewardFrom: "",
  rewardTo: "",
  tokensFrom: "",
  tokensTo: "",
  stepFrom: "",
  stepTo: "",
  said: null,
};

export function isAll(filter: Filter): boolean {
  return Object.entries(filter).every(([, value]) => value === "" || value === null);
}

const haystacks = new WeakMap<Run, { groups: string[]; trajectories: string[] }>();

function haystack(run: Run) {
  let found = haystacks.get(run);
  if (!found) {
    const { groups, trajectories } = run.index;
    found = {
      groups: groups.task.map((task, row) => `${task}\n${groups.prompt[row]}`.toLowerCase()),
      trajectories: trajectories.said.map((said) => said.toLowerCase()),
    };
    haystacks.set(run, found);
  }
  return found;
}

function bound(text: string, otherwise: number): number {
  const value = Number(text);
  return text.trim() === "" || Number.isNaN(value) ? otherwise : value;
}

/** Returns the rows of the trajectories that pass, in order. */
export function passing(run: Run, filter: Filter): number[] {
  const { trajectories, groups, outcomes, tools } = run.index;
  const outcome = filter.outcome === "" ? -1 : outcomes.indexOf(filter.outcome);
  const tool = filter.tool === "" ? -1 : tools.indexOf(filter.tool);
  const [rewardFrom, rewardTo] = [bound(filter.rewardFrom, -Infinity), bound(filter.rewardTo, Infinity)];
  const [tokensFrom, tokensTo] = [bound(filter.tokensFrom, -Infinity), bound(filter.tokensTo, Infinity)];
  const [stepFrom, stepTo] = [bound(filter.stepFrom, -Infinity), bound(filter.stepTo, Infinity)];
  const asksReward = filter.rewardFrom !== "" || filter.rewardTo !== "";
  const text = filter.text.trim().toLowerCase();
  const hay = text ? haystack(run) : null;
  const found: number[] = [];
  for (let row = 0; row < trajectories.id.length; row++) {
    const group = run.groupOf[row] ?? 0;
    const step = groups.step[group] ?? 0;
    if (step < stepFrom || step > stepTo) continue;
    if (outcome >= 0 && trajectories.outcome[row] !== outcome) continue;
    if (tool >= 0 && !trajectories.tools[row]?.includes(tool)) continue;
    const tokens = trajectories.tokens[row] ?? 0;
    if (tokens < tokensFrom || tokens > tokensTo) continue;
    if (asksReward) {
      const reward = trajectories.reward[row] ?? null;
      if (reward === null || reward < rewardFrom || reward > rewardTo) continue;
    }
    if (hay && text) {
      const there =
        hay.groups[group]?.includes(text) ||
        hay.trajectories[row]?.includes(text) ||
        filter.said?.has(trajectories.id[row] ?? -1);
      if (!there) continue;
    }
    found.push(row);
  }
  return found;
}
