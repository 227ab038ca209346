/** The tree of a group: time in tokens from left to right, one lane per trajectory. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Decision, Story, Told } from "./data";
import { number, signed, words } from "./format";
import { layoutOf } from "./layout";

const LANE = 24;
const TOP = 26;
const LEFT = 14;
const RIGHT = 290;

export function Tree(props: {
  story: Story;
  current: number;
  marked: number[];
  onCurrent: (lane: number) => void;
  onOpen: (told: Told) => void;
}) {
  const { story, current, marked } = props;
  const layout = useMemo(() => layoutOf(story), [story]);
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(1000);
  const [decision, setDecision] = useState<Decision | null>(null);
  useEffect(() => {
    const watching = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 1000));
    if (box.current) watching.observe(box.current);
    return () => watching.disconnect();
  }, []);
  const x = (tokens: number) =>
    LEFT + (tokens / Math.max(1, layout.tokens)) * Math.max(200, width - LEFT - RIGHT);
  const y = (lane: number) => TOP + lane * LANE + LANE / 2;
  const height = TOP + layout.lanes.length * LANE + 8;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => Math.round(part * layout.tokens));
  const shown = decision ?? null;
  return (
    <figure class="tree" ref={box}>
      <svg width={width} height={height} role="group" aria-label="Tree of the group">
        {[...new Set(ticks)].map((tick, place, all) => (
          <g key={tick}>
            <line class="grid" x1={x(tick)} x2={x(tick)} y1={TOP - 4} y2={height - 6} />
            <text class="tick" x={x(tick)} y={14} text-anchor={place === 0 ? "start" : place === all.length - 1 ? "end" : "middle"}>
              {place === all.length - 1 ? `${tick} tokens` : tick}
            </text>
          </g>
        ))}
        {layout.lanes.map((told, lane) => (
          <rect
            key={lane}
            class={`lane ${lane === current ? "current" : ""}`}
            x={0}
            y={y(lane) - LANE / 2}
            width={width}
            height={LANE}
            onClick={() => told && props.onOpen(told)}
            onPointerEnter={() => props.onCurrent(lane)}
          />
        ))}
        {layout.forks.map((fork, place) => (
          <path
            key={place}
            class="fork"
            d={`M ${x(fork.at)} ${y(fork.lane)} V ${y(fork.below) - 6} q 0 6 6 6 H ${x(fork.at) + 8}`}
          />
        ))}
        {layout.segments.map((segment) => (
          <line
            key={segment.node}
            class={`segment ${segment.source}`}
            x1={x(segment.from) + 0.5}
            x2={Math.max(x(segment.to) - 0.5, x(segment.from) + 1.5)}
            y1={y(segment.lane)}
            y2={y(segment.lane)}
          />
        ))}
        {layout.marks.map(({ decision: one, lane }, place) => (
          <circle
            key={place}
            class={`decision ${one.reason === "branched" ? "branched" : ""}`}
            cx={x(one.at)}
            cy={y(lane)}
            r={one.reason === "branched" ? 5 : 3.5}
            tabIndex={0}
            role="img"
            aria-label={one.said}
            onPointerEnter={() => setDecision(one)}
            onFocus={() => setDecision(one)}
          >
            <title>{one.said}</title>
          </circle>
        ))}
        {layout.lanes.map((told, lane) => told && (
          <g
            key={told.id}
            class="leaf"
            role="link"
            tabIndex={0}
            aria-label={`trajectory ${told.sample}, ${words(told.outcome)}, reward ${number(told.reward)}`}
            onClick={() => props.onOpen(told)}
            onFocus={() => props.onCurrent(lane)}
            onKeyDown={(event) => event.key === "Enter" && props.onOpen(told)}
          >
            <text x={width - RIGHT + 36} y={y(lane) + 4} text-anchor="end" class="sample">
              {marked.includes(told.id) ? "◆ " : ""}
              {told.sample}
            </text>
            <text x={width - RIGHT + 96} y={y(lane) + 4} text-anchor="end">
              {number(told.reward)}
            </text>
            <text x={width - RIGHT + 170} y={y(lane) + 4} text-anchor="end" class="muted">
              {signed(meanAdvantage(told))}
            </text>
            <text x={width - RIGHT + 188} y={y(lane) + 4} class={told.outcome.startsWith("failed") ? "bad" : "muted"}>
              {words(told.outcome)}
            </text>
          </g>
        ))}
        <g class="tick" aria-hidden="true">
          <text x={width - RIGHT + 36} y={14} text-anchor="end">no.</text>
          <text x={width - RIGHT + 96} y={14} text-anchor="end">reward</text>
          <text x={width - RIGHT + 170} y={14} text-anchor="end">advantage</text>
          <text x={width - RIGHT + 188} y={14}>outcome</text>
        </g>
      </svg>
      <figcaption>
        <ul class="legend">
          <li><i class="swatch prompt" />prompt</li>
          <li><i class="swatch sampled" />sampled</li>
          <li><i class="swatch tool" />tool</li>
          <li><i class="swatch template" />template</li>
          <li><i class="swatch forced" />forced</li>
          {layout.marks.length > 0 && <li><i class="ring full" />branched</li>}
          {layout.marks.length > 0 && <li><i class="ring" />did not branch</li>}
        </ul>
        {layout.marks.length > 0 && <DecisionNote decision={shown} />}
      </figcaption>
    </figure>
  );
}

export function meanAdvantage(told: Told): number | null {
  const values = told.credit?.advantages;
  if (values === undefined || values === null) return null;
  if (typeof values === "number") return values;
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function DecisionNote({ decision }: { decision: Decision | null }) {
  if (!decision) return <p class="decision-note muted">Point at a ring to read why it did or did not branch.</p>;
  const facts: [string, string][] = [
    ["signal", number(decision.signal, 4)],
    ["rise", signed(decision.rise, 4)],
    ["chance", number(decision.chance)],
    ["draw", decision.draws.map((draw) => number(draw)).join(", ") || "–"],
    ["in a row", String(decision.streak)],
    ["budget left", String(decision.open)],
  ];
  if (decision.bounds) facts.splice(1, 0, ["entropy", `${number(decision.bounds[0])} to ${number(decision.bounds[1])} nats`]);
  return (
    <div class="decision-note" role="status">
      <p>{decision.said}.</p>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
