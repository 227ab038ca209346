/** The run on this page: its tables at once, its stories when they are looked at. */

export type Numbers = number | null | (number | null)[];

/** A rate over held-out tasks, with its interval. */
export interface Estimate {
  mean: number;
  low: number;
  high: number;
  tasks: number;
}

/** Scores of an evaluation that has a folder of its own; null for the folder of a run. */
export interface Evaluation {
  confidence: number;
  overall: Record<string, Estimate | null>;
  families: Record<string, Record<string, Estimate | null>>;
}

export interface Index {
  run: {
    name: string;
    env: string;
    steps: number | null;
    config: string;
    sessions: Record<string, unknown>[] | null;
    summary: Record<string, unknown> | null;
    evaluation: Evaluation | null;
    readAt: number;
    hasTokenizer: boolean;
  };
  leftOut: string[];
  metrics: Record<string, (number | null)[]>;
  groups: {
    id: number[];
    step: number[];
    state: string[];
    task: string[];
    prompt: string[];
    why: string[];
    size: number[];
    chunk: number[];
  };
  trajectories: {
    id: number[];
    sample: number[];
    outcome: number[];
    reward: (number | null)[];
    turns: number[];
    tokens: number[];
    context: (number | null)[];
    calls: (number | null)[];
    tools: number[][];
    errors: number[];
    seconds: (number | null)[];
    advantage: (number | null)[];
    said: string[];
  };
  outcomes: string[];
  tools: string[];
}

export type Source = "prompt" | "sampled" | "tool" | "template" | "forced";

export interface StoryNode {
  parent: number | null;
  source: Source;
  turn: number;
  s: number;
  ids: number[];
  logprobs?: Numbers;
  versions?: Numbers;
  entropies?: Numbers;
  status?: string;
  withdraws?: number;
  resumes?: number;
}

export interface Said {
  role: "system" | "user" | "assistant" | "tool";
  text: string;
  name?: string;
  calls?: { name: string; arguments: Record<string, string> }[];
  malformed?: string[];
  pictures?: string[];
  turn: number;
  reward?: number;
  s?: number;
}

export interface Told {
  id: number;
  sample: number;
  state: "open" | "ended" | "abandoned";
  attempt: number;
  at: number | null;
  turnRewards: number[];
  components: Record<string, number>;
  seconds: number;
  calls: number;
  messages: Said[];
  outcome: string;
  reward: number | null;
  error: string;
  fork?: { parent: number; node: number; strategy: string };
  credit?: { advantages: Numbers; logRatios: Numbers; entropies: Numbers };
}

export interface Decision {
  sample: number;
  turn: number;
  at: number;
  reason: string;
  said: string;
  topology: string;
  signal: number | null;
  bounds: [number, number] | null;
  rise: number | null;
  streak: number;
  chance: number | null;
  score: number | null;
  draws: number[];
  open: number;
  children: number[];
}

export interface Story {
  id: number;
  task: string;
  prompt: Said[];
  answer: string;
  tags: string[];
  tools: { function?: { name: string; description?: string } }[];
  nodes: StoryNode[];
  vocabulary: Record<string, string>;
  trajectories: Told[];
  decisions: Decision[];
  pictures: Record<string, string>;
}

/** The tables with what follows from them: where each trajectory's group is, and the reverse. */
export interface Run {
  index: Index;
  /** Of each trajectory, its group's row. */
  groupOf: Int32Array;
  /** Of each group, its first trajectory's row; one more at the end. */
  firstOf: Int32Array;
  rowOfGroup: Map<number, number>;
  rowOfTrajectory: Map<number, number>;
  served: boolean;
}

export function runOf(index: Index, served: boolean): Run {
  const { size, id } = index.groups;
  const firstOf = new Int32Array(size.length + 1);
  const groupOf = new Int32Array(index.trajectories.id.length);
  size.forEach((count, row) => {
    const first = firstOf[row] ?? 0;
    firstOf[row + 1] = first + count;
    groupOf.fill(row, first, first + count);
  });
  return {
    index,
    groupOf,
    firstOf,
    rowOfGroup: new Map(id.map((one, row) => [one, row])),
    rowOfTrajectory: new Map(index.trajectories.id.map((one, row) => [one, row])),
    served,
  };
}

async function unpacked(text: string): Promise<unknown> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function embedded(name: string): string {
  const element = document.getElementById(`agentrl-${name}`);
  if (!element) throw new Error(`this file ends before its part ${name}; make it again`);
  return element.textContent ?? "";
}

/** Resolves when the whole file has been read. */
const wholePage = new Promise<void>((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", () => resolve(), { once: true });
});

export async function embeddedIndex(): Promise<Index> {
  return (await unpacked(embedded("index"))) as Index;
}

let latest: string | null = null;

/** Returns the tables of a served run, or null if they are what they were. */
export async function servedIndex(): Promise<Index | null> {
  const headers: Record<string, string> = latest === null ? {} : { "If-None-Match": latest };
  const answer = await fetch(`index${location.search}`, { headers, cache: "no-store" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(`the server answers ${answer.status}: ${await answer.text()}`);
  latest = answer.headers.get("ETag");
  return (await answer.json()) as Index;
}

/** How a served run stands; times in seconds, shares of 1. */
export interface Live {
  phase: "running" | "ended" | "killed";
  step: number;
  steps: number | null;
  leftS: number | null;
  stepS: number | null;
  tokensPerS: number | null;
  reward: { step: number; mean: number; groups: number; low: number | null; high: number | null } | null;
  learning: number | null;
  shares: { policy: number; world: number; other: number } | null;
  age: { mean: number; max: number | null } | null;
  failures: Record<string, number>;
  ended: number;
  groups: Record<string, number>;
  flying: number;
  stuck: number;
  slowest: Flying[];
}

export interface Flying {
  group: number;
  sample: number;
  task: string;
  turns: number;
  usedS: number;
  quietS: number | null;
  isStuck: boolean;
}

/** Returns how a served run stands now. */
export async function servedLive(): Promise<Live> {
  const answer = await fetch(`live${location.search}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return (await answer.json()) as Live;
}

const chunks = new Map<number, Promise<Story[]>>();
const KEPT_CHUNKS = 12;

function chunk(number: number): Promise<Story[]> {
  const known = chunks.get(number);
  if (known) return known;
  const made = wholePage.then(
    async () => (await unpacked(embedded(`chunk-${number}`))) as Story[],
  );
  chunks.set(number, made);
  const oldest = chunks.keys().next().value;
  if (chunks.size > KEPT_CHUNKS && oldest !== undefined) chunks.delete(oldest);
  return made;
}

/** Returns a group's story, or null where its tokens are not on the page. */
export async function storyOf(run: Run, groupRow: number): Promise<Story | null> {
  const id = run.index.groups.id[groupRow];
  const place = run.index.groups.chunk[groupRow] ?? -1;
  if (place < 0) return null;
  if (run.served) {
    const answer = await fetch(`story/${id}${location.search}`, { cache: "no-store" });
    return answer.ok ? ((await answer.json()) as Story) : null;
  }
  return (await chunk(place)).find((story) => story.id === id) ?? null;
}

/** Yields, chunk after chunk, the ids of trajectories in which `text` was said or answered. */
export async function* saying(run: Run, text: string): AsyncGenerator<number[]> {
  const wanted = text.toLowerCase();
  const said = (told: Told) =>
    told.messages.some((message) =>
      `${message.text}\n${JSON.stringify(message.calls ?? "")}`.toLowerCase().includes(wanted),
    );
  const found = (stories: Story[]) =>
    stories.flatMap((story) => story.trajectories.filter(said).map((told) => told.id));
  if (run.served) {
    for (const row of run.index.groups.id.keys()) {
      const story = await storyOf(run, row);
      yield story ? found([story]) : [];
    }
    return;
  }
  const last = Math.max(-1, ...run.index.groups.chunk);
  for (let at = 0; at <= last; at++) yield found(await chunk(at));
}

/** Returns the number at a place of a column that may be one number for all. */
export function at(numbers: Numbers | undefined, place: number): number | null {
  if (numbers === undefined || numbers === null) return null;
  return typeof numbers === "number" ? numbers : (numbers[place] ?? null);
}
