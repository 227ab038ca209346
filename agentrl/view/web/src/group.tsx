/** One group: its task, and the tree of its trajectories. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Run, Story, Told } from "./data";
import { storyOf } from "./data";
import { count, number, spread, whole } from "./format";
import { useKeys } from "./keys";
import { layoutOf } from "./layout";
import { go } from "./route";
import { Pictures, Text } from "./said";
import { Tree } from "./tree";

export function useStory(run: Run, row: number | undefined): Story | null | "reading" {
  const [story, setStory] = useState<Story | null | "reading">("reading");
  const state = row === undefined ? "" : run.served ? `${run.index.groups.state[row]}${run.index.run.readAt}` : "";
  useEffect(() => {
    let isOver = false;
    if (row === undefined) return setStory(null);
    storyOf(run, row).then(
      (found) => !isOver && setStory(found),
      () => !isOver && setStory(null),
    );
    return () => {
      isOver = true;
    };
  }, [run.served ? null : run, row, state]);
  return story;
}

export interface Marks {
  marked: number[];
  onMark: (id: number) => void;
  onCompare: () => void;
}

export function GroupView({ run, id, marks }: { run: Run; id: number; marks: Marks }) {
  const { groups, trajectories } = run.index;
  const row = run.rowOfGroup.get(id);
  const story = useStory(run, row);
  const [lane, setLane] = useState(-1);
  const lanes = useMemo(() => (story && story !== "reading" ? layoutOf(story).lanes : []), [story]);
  const open = (told: Told) => go({ view: "trajectory", trajectory: told.id });
  const sibling = (by: number) => {
    const next = groups.id[(row ?? 0) + by];
    if (next !== undefined) go({ view: "group", group: next });
  };
  useEffect(() => setLane(-1), [id]);
  useKeys({
    j: () => setLane((at) => Math.min(lanes.length - 1, at + 1)),
    k: () => setLane((at) => Math.max(0, at - 1)),
    ArrowDown: () => setLane((at) => Math.min(lanes.length - 1, at + 1)),
    ArrowUp: () => setLane((at) => Math.max(0, at - 1)),
    Enter: () => lanes[lane] && open(lanes[lane]),
    m: () => lanes[lane] && marks.onMark(lanes[lane].id),
    c: marks.onCompare,
    n: () => sibling(1),
    p: () => sibling(-1),
  });
  if (row === undefined) return <Missing what={`group ${id}`} />;
  const own = <T,>(of: T[]) => of.slice(run.firstOf[row], run.firstOf[row + 1]);
  const rewards = own(trajectories.reward).filter((one): one is number => one !== null);
  const mean = rewards.length ? rewards.reduce((sum, one) => sum + one, 0) / rewards.length : null;
  return (
    <main class="page group">
      <nav class="crumbs" aria-label="Where this is">
        <a href="#/groups">Groups</a> <span>step {groups.step[row]}</span> <span>group {id}</span>
        <span class="steps">
          <button class="quiet" onClick={() => sibling(-1)} disabled={row === 0}>Previous</button>
          <button class="quiet" onClick={() => sibling(1)} disabled={row === groups.id.length - 1}>Next</button>
        </span>
      </nav>
      <dl class="facts">
        <div><dt>State</dt><dd>{groups.state[row]}</dd></div>
        <div><dt>Trajectories</dt><dd>{whole(groups.size[row])}</dd></div>
        <div><dt>Mean reward</dt><dd>{number(mean)}</dd></div>
        <div><dt>Spread</dt><dd>{number(spread(rewards))}</dd></div>
        <div><dt>Task</dt><dd class="mono">{groups.task[row]}</dd></div>
        {story && story !== "reading" && story.tags.length > 0 && (
          <div><dt>Tags</dt><dd>{story.tags.join(", ")}</dd></div>
        )}
      </dl>
      {groups.why[row] && <p class="notice">{groups.why[row]}</p>}
      {story === "reading" && <p class="muted" role="status">Reading…</p>}
      {story === null && <p class="notice">The trajectories of this group are not here.</p>}
      {story && story !== "reading" && (
        <>
          <section class="task" aria-label="Task">
            {story.prompt.map((message, at) => (
              <div key={at}>
                <Text text={message.text} />
                <Pictures names={message.pictures} story={story} />
              </div>
            ))}
            {story.answer && <p class="muted">Answer: <span class="mono">{story.answer}</span></p>}
          </section>
          <Tree story={story} current={lane} marked={marks.marked} onCurrent={setLane} onOpen={open} />
          <Given story={story} />
        </>
      )}
    </main>
  );
}

function Given({ story }: { story: Story }) {
  const gone = story.trajectories.filter((one) => one.state === "abandoned");
  if (!gone.length) return null;
  return (
    <details>
      <summary>Given up <span class="muted">{gone.length}</span></summary>
      <ul>
        {gone.map((one) => (
          <li key={one.id}>
            <a href={`#/trajectory/${one.id}`}>sample {one.sample}</a>, {count(one.messages.length, "message")}: {one.error}
          </li>
        ))}
      </ul>
    </details>
  );
}

export function Missing({ what }: { what: string }) {
  return (
    <main class="page">
      <p class="notice">There is no {what} on this page. <a href="#/groups">All groups</a></p>
    </main>
  );
}
