/** The runs on this page: their tables at once, their stories when they are looked at.
 *
 * `agentrl/view/index.py` makes the tables and `group_page.py` the stories; a column of numbers
 * that are all equal is that number (`at`).
 */

import { visible } from "./format.js";

/** Returns the tables with what follows from them: where each trajectory's group is, and back. */
export function runOf(index, number, isServed) {
  const { size, id } = index.groups;
  const firstOf = new Int32Array(size.length + 1);
  const groupOf = new Int32Array(index.trajectories.id.length);
  size.forEach((length, row) => {
    firstOf[row + 1] = firstOf[row] + length;
    groupOf.fill(row, firstOf[row], firstOf[row + 1]);
  });
  return {
    number,
    index,
    groupOf,
    firstOf,
    rowOfGroup: new Map(id.map((one, row) => [one, row])),
    rowOfTrajectory: new Map(index.trajectories.id.map((one, row) => [one, row])),
    isServed,
  };
}

/** Returns a column of trajectories for the rows of one group. */
export function ownOf(run, row, column) {
  return column.slice(run.firstOf[row], run.firstOf[row + 1]);
}

/** Returns the rewards of a group that there are. */
export function rewardsOf(run, row) {
  return ownOf(run, row, run.index.trajectories.reward).filter((one) => one !== null);
}

async function unpack(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function embedded(run, name) {
  const element = document.getElementById(`agentrl-${run ? `${run}-` : ""}${name}`);
  if (!element) throw new Error(`this file ends before its part ${name}; make it again`);
  return element.textContent;
}

/** Resolves when the whole file has been read. */
const wholePage = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", () => resolve(), { once: true });
});

export async function embeddedIndex(run) {
  return unpack(embedded(run, "index"));
}

async function ask(path, run, headers = {}) {
  return fetch(`${path}${location.search}&run=${run}`, { headers, cache: "no-store" });
}

const tags = [];

/** Returns the tables of a served run, or null if they are what they were. */
export async function servedIndex(run) {
  const answer = await ask("index", run, tags[run] ? { "If-None-Match": tags[run] } : {});
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(visible(await answer.text()));
  tags[run] = answer.headers.get("ETag");
  return answer.json();
}

/** Returns how a served run stands now; times in seconds, shares of 1. */
export async function servedLive(run) {
  const answer = await ask("live", run);
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return answer.json();
}

const chunks = new Map();
const KEPT_CHUNKS = 12;

function chunk(run, number) {
  const name = `${run}/${number}`;
  const known = chunks.get(name);
  if (known) return known;
  const made = wholePage.then(() => unpack(embedded(run, `chunk-${number}`)));
  chunks.set(name, made);
  if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
  return made;
}

/** Returns a group's story, or null where its tokens are not on the page. */
export async function storyOf(run, row) {
  const id = run.index.groups.id[row];
  const place = run.index.groups.chunk[row] ?? -1;
  if (place < 0) return null;
  if (run.isServed) {
    const answer = await ask(`story/${id}`, run.number);
    return answer.ok ? answer.json() : null;
  }
  return (await chunk(run.number, place)).find((story) => story.id === id) ?? null;
}

/** Yields the ids of trajectories in which `text` was said or answered, and the share searched. */
export async function* saying(run, text) {
  const wanted = text.toLowerCase();
  const textOf = ({ text, calls = [] }) => [text, ...calls.flatMap((call) => [call.name, ...Object.entries(call.arguments).flat()])].join("\n");
  const isSaid = (told) => told.messages.some((message) => textOf(message).toLowerCase().includes(wanted));
  const { id, chunk: places } = run.index.groups;
  const parts = run.isServed ? [...id.keys()] : [...new Set(places.filter((place) => place >= 0))];
  for (const [done, part] of parts.entries()) {
    const stories = run.isServed ? [await storyOf(run, part)] : await chunk(run.number, part);
    const told = stories.flatMap((story) => story?.trajectories ?? []);
    yield { ids: told.filter(isSaid).map((one) => one.id), share: (done + 1) / parts.length };
  }
}

/** Returns the number at a place of a column that may be one number for all. */
export function at(numbers, place) {
  if (numbers === undefined || numbers === null) return null;
  return typeof numbers === "number" ? numbers : (numbers[place] ?? null);
}
