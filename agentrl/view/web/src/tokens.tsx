/** Every token of a trajectory, coloured by one of its numbers. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import { exact, number, signed } from "./format";
import type { Token } from "./path";

export const COLOURS = ["source", "entropy", "advantage", "ratio", "age"] as const;
export type Colour = (typeof COLOURS)[number];

interface Paint {
  background: string | undefined;
}

interface Scale {
  paint: (token: Token) => Paint;
  /** Ends of the scale, in words. */
  low: string;
  middle?: string;
  high: string;
  isKnown: boolean;
}

function mix(name: string, share: number): string {
  return `color-mix(in oklab, var(--${name}) ${Math.round(Math.max(0, Math.min(1, share)) * 100)}%, transparent)`;
}

/** The largest size without the last half per cent, which would make all others pale. */
function reach(values: number[]): number {
  const sizes = values.map(Math.abs).sort((one, other) => one - other);
  return sizes[Math.floor((sizes.length - 1) * 0.995)] ?? 0;
}

export function scaleOf(tokens: Token[], colour: Colour): Scale {
  if (colour === "source") {
    return { paint: () => ({ background: undefined }), low: "", high: "", isKnown: true };
  }
  const value = (token: Token) =>
    colour === "entropy" ? token.entropy : colour === "advantage" ? token.advantage : colour === "ratio" ? token.logRatio : token.age;
  const known = tokens.map(value).filter((one): one is number => one !== null);
  const most = reach(known);
  if (colour === "entropy" || colour === "age") {
    return {
      paint: (token) => {
        const own = value(token);
        return { background: own === null ? undefined : mix("heat", most ? 0.06 + 0.6 * (own / most) : 0.06) };
      },
      low: "0",
      high: colour === "age" ? `${number(most)} versions` : `${number(most)} nats`,
      isKnown: known.length > 0,
    };
  }
  const end = colour === "ratio" ? number(Math.exp(most), 3) : signed(most);
  const start = colour === "ratio" ? number(Math.exp(-most), 3) : signed(-most);
  return {
    paint: (token) => {
      const own = value(token);
      if (own === null) return { background: undefined };
      const share = most ? 0.04 + 0.6 * (Math.abs(own) / most) : 0.04;
      return { background: mix(own < 0 ? "minus" : "plus", share) };
    },
    low: start,
    middle: colour === "ratio" ? "1" : "0",
    high: end,
    isKnown: known.length > 0,
  };
}

export function Legend({ tokens, colour }: { tokens: Token[]; colour: Colour }) {
  const scale = useMemo(() => scaleOf(tokens, colour), [tokens, colour]);
  if (colour === "source") {
    const there = new Set(tokens.map((token) => token.source));
    return (
      <ul class="legend">
        {(["prompt", "sampled", "tool", "template", "forced"] as const)
          .filter((source) => there.has(source))
          .map((source) => (
            <li key={source}><i class={`swatch ${source}`} />{source}</li>
          ))}
      </ul>
    );
  }
  if (!scale.isKnown) return <p class="muted">{UNKNOWN[colour]}</p>;
  const isTwoSided = scale.middle !== undefined;
  return (
    <div class="scale">
      <span>{scale.low}</span>
      <i class={isTwoSided ? "two" : "one"} />
      <span>{scale.high}</span>
      <span class="muted">{isTwoSided ? `plain is ${scale.middle}; ` : ""}tokens without a value stay plain</span>
    </div>
  );
}

const UNKNOWN: Record<Exclude<Colour, "source">, string> = {
  entropy: "No entropy is known: these tokens did not train, or view.record was off.",
  advantage: "No advantage is known: these tokens did not train, or view.record was off.",
  ratio: "No ratio is known: these tokens did not train, or view.record was off.",
  age: "No age is known: the group has not been trained.",
};

function visible(text: string): string {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
  return shown === "" ? "∅" : shown;
}

export function Tokens(props: {
  tokens: Token[];
  colour: Colour;
  current: number;
  onCurrent: (place: number) => void;
  same?: number;
}) {
  const { tokens, colour, current, onCurrent, same = 0 } = props;
  const box = useRef<HTMLDivElement>(null);
  const scale = useMemo(() => scaleOf(tokens, colour), [tokens, colour]);
  const hadFocus = useRef(false);
  useEffect(() => {
    if (!hadFocus.current) return;
    const element = box.current?.querySelector<HTMLElement>(`[data-place="${current}"]`);
    element?.focus({ preventScroll: true });
    element?.scrollIntoView({ block: "nearest" });
  }, [current]);
  const placeOf = (target: EventTarget | null) =>
    (target as HTMLElement | null)?.closest<HTMLElement>("[data-place]")?.dataset["place"];
  const seen = (event: Event) => {
    const place = placeOf(event.target);
    if (place !== undefined) onCurrent(Number(place));
  };
  const spans = useMemo(
    () =>
      tokens.map((token, place) => {
        const opens = place === 0 || tokens[place - 1]?.turn !== token.turn;
        const classes = ["token", colour === "source" ? token.source : ""];
        if (token.withdrawn) classes.push("withdrawn");
        if (place < same) classes.push("same");
        return (
          <>
            {opens && <span class="turn" key={`turn-${place}`}>turn {token.turn}</span>}
            <span
              key={place}
              data-place={place}
              class={classes.join(" ")}
              tabIndex={-1}
              style={colour === "source" ? undefined : { background: scale.paint(token).background }}
            >
              {visible(token.text)}
            </span>
            {token.text.endsWith("\n") && <br />}
          </>
        );
      }),
    [tokens, colour, scale, same],
  );
  useEffect(() => {
    box.current?.querySelector(".token.here")?.classList.remove("here");
    box.current?.querySelector(`[data-place="${current}"]`)?.classList.add("here");
  }, [current, spans]);
  return (
    <div
      class={`tokens by-${colour}`}
      ref={box}
      tabIndex={0}
      role="group"
      aria-label="Tokens; arrow keys go from one to the next"
      onPointerOver={seen}
      onClick={seen}
      onFocusIn={() => {
        hadFocus.current = true;
      }}
      onFocusOut={() => {
        hadFocus.current = false;
      }}
    >
      {spans}
    </div>
  );
}

/** All that is known of one token. */
export function TokenFacts({ token, place }: { token: Token | undefined; place: number }) {
  if (!token) return <p class="muted">Point at a token, or use the arrow keys.</p>;
  const facts: [string, string][] = [
    ["place", String(place)],
    ["id", token.id < 0 ? "redacted" : String(token.id)],
    ["source", token.withdrawn ? `${token.source}, withdrawn` : token.source],
    ["turn", String(token.turn)],
  ];
  if (token.source === "sampled") {
    facts.push(
      ["log-prob", exact(token.logprob)],
      ["probability", token.logprob === null ? "not known" : number(Math.exp(token.logprob), 4)],
      ["entropy", exact(token.entropy)],
      ["advantage", exact(token.advantage)],
      ["ratio", token.logRatio === null ? "not known" : exact(Number(Math.exp(token.logRatio).toPrecision(4)))],
      ["version", exact(token.version)],
      ["age", exact(token.age)],
      ["trained", token.trained ? "yes" : "no"],
    );
  } else facts.push(["trained", "never: the policy did not sample it"]);
  return (
    <div class="token-facts" role="status">
      <p class="token-text">{visible(token.text)}</p>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
        ))}
      </dl>
    </div>
  );
}
