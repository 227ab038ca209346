/** Which trajectories the reader wants to see; the address holds it all. */

export const TEXTS = ["q", "outcome", "tool"];
export const RANGES = ["reward", "entropy", "tokens", "step"];
/** Any failure, whatever its kind. */
export const FAILED = "failed";

/** Returns the filter of an address; ranges are written `from..to`, either may be missing. */
export function filterOf(query) {
  const filter = { everything: query.get("everything") === "1" };
  for (const name of TEXTS) filter[name] = query.get(name) ?? "";
  for (const name of RANGES) filter[name] = (query.get(name) ?? "").split("..").concat("").slice(0, 2);
  return filter;
}

/** Returns what an address says of a filter. */
export function queryOf(filter) {
  const query = {};
  for (const name of TEXTS) if (filter[name]) query[name] = filter[name];
  for (const name of RANGES) if (filter[name].join("")) query[name] = filter[name].join("..");
  if (filter.q && filter.everything) query.everything = "1";
  return query;
}

const haystacks = new WeakMap();

function haystackOf(run) {
  if (!haystacks.has(run)) {
    const { groups, trajectories } = run.index;
    haystacks.set(run, {
      groups: groups.task.map((task, row) => `${task}\n${groups.prompt[row]}`.toLowerCase()),
      trajectories: trajectories.said.map((said) => said.toLowerCase()),
    });
  }
  return haystacks.get(run);
}

function bounds([from, to]) {
  const bound = (text, otherwise) => (text.trim() === "" || Number.isNaN(Number(text)) ? otherwise : Number(text));
  return [bound(from, -Infinity), bound(to, Infinity)];
}

/** Returns the rows of the trajectories that pass, in order; `said` are ids found by a search. */
export function passing(run, filter, said = null) {
  const { trajectories, groups, outcomes, tools } = run.index;
  const outcome = new Set(
    [...outcomes.keys()].filter((place) => (filter.outcome === FAILED ? outcomes[place].startsWith("failed_") : outcomes[place] === filter.outcome)),
  );
  const tool = filter.tool ? tools.indexOf(filter.tool) : -1;
  const columns = { reward: trajectories.reward, entropy: trajectories.entropy, tokens: trajectories.tokens };
  const ranges = Object.keys(columns)
    .filter((name) => filter[name].join(""))
    .map((name) => [columns[name], ...bounds(filter[name])]);
  const [stepFrom, stepTo] = bounds(filter.step);
  const text = filter.q.trim().toLowerCase();
  const hay = text ? haystackOf(run) : null;
  const found = [];
  for (let group = 0; group < groups.id.length; group++) {
    if (groups.step[group] < stepFrom || groups.step[group] > stepTo) continue;
    const isAsked = hay !== null && hay.groups[group].includes(text);
    for (let row = run.firstOf[group]; row < run.firstOf[group + 1]; row++) {
      if (filter.outcome && !outcome.has(trajectories.outcome[row])) continue;
      if (filter.tool && !trajectories.tools[row].includes(tool)) continue;
      // A trajectory without the number, as one that failed has no reward, is in no range of it.
      if (ranges.some(([column, from, to]) => column[row] === null || column[row] < from || column[row] > to)) continue;
      if (hay && !isAsked && !hay.trajectories[row].includes(text) && !said?.has(trajectories.id[row])) continue;
      found.push(row);
    }
  }
  return found;
}
